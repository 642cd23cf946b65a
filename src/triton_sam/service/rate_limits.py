"""Rate limits per caller or address, as token buckets."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from triton_sam.errors import RateLimited

Clock = Callable[[], float]
_BURST_SECONDS = 10.0
_MINUTE = 60.0
#: Bounds the memory: a client may use a whole network of addresses.
_MAX_BUCKETS = 10_000
#: An IPv6 user typically has a whole /64 network.
_V6_PREFIX = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit.

    Attributes:
        per_minute: requests that are allowed per minute, above 0.
        burst: requests that are allowed at once, at least 1.
    """

    per_minute: float
    burst: float

    @classmethod
    def of(cls, per_minute: float, burst: float = 0) -> Rate:
        """A burst of 0 means the requests of ten seconds."""
        return cls(per_minute, burst or max(1.0, math.ceil(per_minute * _BURST_SECONDS / _MINUTE)))


class TokenBucket:
    """A token bucket, full at first. Times are seconds of a monotonic clock."""

    __slots__ = ("_tokens", "_updated", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._tokens = rate.burst
        self._updated = now

    def take(self, now: float) -> float:
        """Takes one token and returns 0; if the bucket is empty, returns the seconds until the next token."""
        self._fill(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) * _MINUTE / self.rate.per_minute

    def is_full(self, now: float) -> bool:
        """Whether it can be dropped: a new bucket would be the same."""
        self._fill(now)
        return self._tokens >= self.rate.burst

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._updated) * self.rate.per_minute / _MINUTE
        self._tokens = min(self.rate.burst, self._tokens + gained)
        self._updated = max(self._updated, now)


def check_wait(rate: Rate, seconds: float) -> None:
    """Raises RateLimited if a caller has to wait for its next token."""
    if seconds > 0:
        raise RateLimited(
            f"the rate limit is {rate.per_minute:g} requests per minute: try again in {math.ceil(seconds)} s", seconds
        )


class Buckets(Protocol):
    """A token bucket for each name."""

    def take(self, name: str, rate: Rate) -> None:
        """Takes a token of this name's bucket; raises RateLimited if it is empty."""


class TokenBuckets:
    """One token bucket for each name. If there are too many, the least recently used are dropped."""

    def __init__(self, clock: Clock = time.monotonic, max_buckets: int = _MAX_BUCKETS) -> None:
        self._clock = clock
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str, rate: Rate) -> None:
        """Takes a token of this name's bucket; raises RateLimited if it is empty."""
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[name] = TokenBucket(rate, now)
        self._buckets.move_to_end(name)
        wait = bucket.take(now)
        if len(self._buckets) > self._max_buckets:
            self._drop(now)
        check_wait(rate, wait)

    def __len__(self) -> int:
        return len(self._buckets)

    def _drop(self, now: float) -> None:
        for name in [name for name, bucket in self._buckets.items() if bucket.is_full(now)]:
            del self._buckets[name]
        while len(self._buckets) > self._max_buckets // 2:
            self._buckets.popitem(last=False)


def address_name(address: str) -> str:
    """The name of an address's bucket: the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> (128 - _V6_PREFIX) << (128 - _V6_PREFIX), _V6_PREFIX)))
