from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.errors import RateLimited
from triton_sam.service.rate_limits import Rate, TokenBucket, TokenBuckets, address_name

RATES = st.builds(Rate, st.floats(0.1, 60_000), st.integers(1, 500).map(float))
PAUSES = st.lists(st.floats(0, 30), min_size=1, max_size=200)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(RATES, PAUSES)
def test_never_more_than_the_burst_and_what_came_back(rate: Rate, pauses: list[float]) -> None:
    """In every stretch of time, from whichever request to whichever other."""
    bucket, now, taken = TokenBucket(rate, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if bucket.take(now) == 0.0:
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = rate.burst + (taken[last] - taken[first]) * rate.per_minute / 60
            assert last - first + 1 <= allowed + 1e-6 * (1 + allowed)


@given(RATES, PAUSES)
def test_a_token_is_available_after_the_reported_wait_and_not_much_sooner(rate: Rate, pauses: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for pause in pauses:
        now += pause
        wait = bucket.take(now)
        assert 0 <= wait <= 60 / rate.per_minute * (1 + 1e-9)
        if wait > 1e-6:
            assert bucket.take(now + wait * 0.99) > 0
            now += wait * (1 + 1e-9) + 1e-9
            assert bucket.take(now) == 0


@given(RATES, st.floats(0, 1e4))
def test_a_clock_that_goes_back_gives_nothing(rate: Rate, back: float) -> None:
    bucket = TokenBucket(rate, 1e4)
    while bucket.take(1e4) == 0:
        pass
    assert bucket.take(1e4 - back) > 0


@pytest.mark.parametrize(("per_minute", "burst", "expected"), [(600, 0, 100), (1, 0, 1), (30, 0, 5), (60, 7, 7)])
def test_bursts(per_minute: float, burst: float, expected: float) -> None:
    assert Rate.of(per_minute, burst).burst == expected


def test_names_have_buckets_of_their_own() -> None:
    clock = Clock()
    buckets, rate = TokenBuckets(clock), Rate(60, 2)
    for name in ("a", "a", "b", "b"):
        buckets.take(name, rate)
    with pytest.raises(RateLimited, match=r"60 requests per minute.*in 1 s") as refused:
        buckets.take("a", rate)
    assert refused.value.retry_after == pytest.approx(1.0)
    clock.now += 1.0
    buckets.take("a", rate)
    with pytest.raises(RateLimited):
        buckets.take("a", rate)
    buckets.take("a", Rate(60, 3))  # another rate begins anew


def test_addresses_do_not_fill_the_memory() -> None:
    clock = Clock()
    buckets, rate = TokenBuckets(clock, max_buckets=100), Rate(60, 2)
    for number in range(1000):
        clock.now += 0.001
        buckets.take(f"address/{number}", rate)
        assert len(buckets) <= 100
    clock.now += math.ceil(60 / rate.per_minute * 2)
    for number in range(101):
        buckets.take(f"new/{number}", rate)
    assert len(buckets) <= 100


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("unknown", "unknown"),
    ],
)
def test_the_bucket_of_an_address(address: str, name: str) -> None:
    assert address_name(address) == name
