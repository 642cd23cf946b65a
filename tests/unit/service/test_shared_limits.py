from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.errors import QueueFull, RateLimited
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.app import _capacity
from triton_sam.service.rate_limits import Buckets, Rate, TokenBuckets
from triton_sam.service.shared_limits import SharedLimits
from triton_sam.service.shared_state import SharedState
from triton_sam.settings import Settings

PROCESSES = 3
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "limits"


def takes(buckets: Buckets, rate: Rate, name: str = "alice") -> bool:
    try:
        buckets.take(name, rate)
    except RateLimited:
        return False
    return True


def take_often(file: Path, row: int) -> int:
    """How many of many requests one process was allowed."""
    buckets, rate = SharedLimits(file, PROCESSES).caller_buckets(), Rate(1e-6, 100)
    return sum(takes(buckets, rate) for _ in range(500))


def hold_often(file: Path, row: int) -> int:
    """How many places one process got and kept."""
    capacity = ServiceCapacity(50, {}, max_bytes=1, tally=SharedLimits(file, PROCESSES).tally(row))
    held = 0
    for _ in range(500):
        try:
            capacity.add("/", working=1)
        except QueueFull:
            continue
        held += 1
    return held


def test_a_rate_is_one_for_all_processes(file: Path) -> None:
    SharedLimits(file, PROCESSES).close()
    with ProcessPoolExecutor(PROCESSES, SPAWN) as pool:
        allowed = list(pool.map(take_often, [file] * PROCESSES, range(PROCESSES)))
    assert sum(allowed) == 100


def test_places_are_one_number_for_all_processes(file: Path) -> None:
    limits = SharedLimits(file, PROCESSES)
    with ProcessPoolExecutor(PROCESSES, SPAWN) as pool:
        held = list(pool.map(hold_often, [file] * PROCESSES, range(PROCESSES)))
    tally = limits.tally(0)
    assert sum(held) == tally.total("working") == 50
    limits.clear(1)
    assert tally.total("working") == 50 - held[1], "a process that ended takes no place"
    limits.close()


@given(
    steps=st.lists(st.floats(0, 30), max_size=40),
    per_minute=st.sampled_from([1.0, 6.0, 60.0, 600.0]),
    burst=st.integers(1, 5),
)
def test_shared_buckets_allow_what_those_of_one_process_allow(
    steps: list[float], per_minute: float, burst: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    now = 1000.0
    limits = SharedLimits(tmp_path_factory.mktemp("limits") / "limits", 1)
    shared, local = limits.address_buckets(lambda: now), TokenBuckets(lambda: now)
    rate = Rate(per_minute, burst)
    for step in steps:
        now += round(step * 8) / 8  # exact in binary, so that no rounding decides
        assert takes(shared, rate) == takes(local, rate)
    limits.close()


def test_a_limit_tells_when_to_come_back(file: Path) -> None:
    limits = SharedLimits(file, 1)
    buckets, rate = limits.caller_buckets(lambda: 50.0), Rate(6, 1)
    buckets.take("alice", rate)
    with pytest.raises(RateLimited, match="6 requests per minute: try again in 10 s") as caught:
        buckets.take("alice", rate)
    assert caught.value.retry_after == pytest.approx(10)
    buckets.take("bob", rate)
    buckets.take("alice", Rate(7, 1))
    limits.address_buckets(lambda: 50.0).take("alice", rate)
    limits.close()


def test_any_number_of_names(file: Path) -> None:
    now, rate = 100.0, Rate(60, 2)
    limits = SharedLimits(file, 1)
    buckets = limits.address_buckets(lambda: now)
    for index in range(50_000):
        assert takes(buckets, rate, str(index))
    size = file.stat().st_size
    assert size < 1024 * 1024
    assert [takes(buckets, rate, "49999") for _ in range(2)] == [True, False], "the newest is remembered"
    limits.close()


def test_every_path_with_a_limit_of_its_own_is_counted(file: Path) -> None:
    limits = SharedLimits(file, 2)
    capacity = _capacity(Settings(), SharedState(tally=limits.tally(1)))
    assert len(capacity._parts) >= 4
    for path, (part, _) in capacity._parts.items():
        capacity.check(path)
        capacity.add(path, working=1)
        assert limits.tally(0).total(part) == 1
    limits.close()


def test_counts_of_other_processes(file: Path) -> None:
    limits = SharedLimits(file, 2)
    one, two = limits.tally(0), limits.tally(1)
    assert (one.add("bytes", 10), two.add("bytes", 5), one.add("bytes", -3)) == (10, 15, 12)
    assert one.total("bytes") == two.total("bytes") == 12
    assert one.total("sockets") == 0
    limits.close()
