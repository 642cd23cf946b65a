"""How often somebody may ask: a bucket of permits that fills again by itself."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from triton_sam.errors import RateLimited

Clock = Callable[[], float]
_BURST_SECONDS = 10.0
_MINUTE = 60.0
#: Somebody with a network of addresses must not fill the memory with them.
_MOST_BUCKETS = 10_000
#: An IPv6 user has at least so many bits to himself.
_V6_PREFIX = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """
    Attributes:
        per_minute: permits that come back in a minute, above 0.
        burst: permits that can be had at once, at least 1.
    """

    per_minute: float
    burst: float

    @classmethod
    def of(cls, per_minute: float, burst: float = 0) -> Rate:
        """With a burst of 0: what comes back in ten seconds."""
        return cls(per_minute, burst or max(1.0, math.ceil(per_minute * _BURST_SECONDS / _MINUTE)))


class Bucket:
    """Full at first. Times are seconds of a clock that never goes back."""

    __slots__ = ("_left", "_seen", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._left = rate.burst
        self._seen = now

    def take(self, now: float) -> float:
        """Takes a permit and gives 0; where there is none, the seconds until there is one."""
        self._fill(now)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) * _MINUTE / self.rate.per_minute

    def is_full(self, now: float) -> bool:
        """Whether it can be forgotten: a new one would be the same."""
        self._fill(now)
        return self._left >= self.rate.burst

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._seen) * self.rate.per_minute / _MINUTE
        self._left = min(self.rate.burst, self._left + gained)
        self._seen = max(self._seen, now)


class Buckets:
    """One bucket for each name; those not used the longest are forgotten where there are too many."""

    def __init__(self, clock: Clock = time.monotonic, most: int = _MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, name: str, rate: Rate) -> None:
        """RateLimited where there is no permit left under this name."""
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[name] = Bucket(rate, now)
        self._buckets.move_to_end(name)
        wait = bucket.take(now)
        if len(self._buckets) > self._most:
            self._forget(now)
        if wait > 0:
            raise RateLimited(
                f"more than {rate.per_minute:g} requests a minute came from you: try again in {math.ceil(wait)} s", wait
            )

    def __len__(self) -> int:
        return len(self._buckets)

    def _forget(self, now: float) -> None:
        for name in [name for name, bucket in self._buckets.items() if bucket.is_full(now)]:
            del self._buckets[name]
        while len(self._buckets) > self._most // 2:
            self._buckets.popitem(last=False)


def address_name(address: str) -> str:
    """What stands for one user among addresses: an IPv4 address, or the network of an IPv6 one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> (128 - _V6_PREFIX) << (128 - _V6_PREFIX), _V6_PREFIX)))
