"""How far a job is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds that a rate is taken over.
WINDOW = 60.0
#: Seconds between two points of a rate: the deque stays short.
_STEP = 0.5


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is.

    Attributes:
        done, failed: images that are recorded, in this run and before.
        rate: images a second over the last minute.
        rest_seconds: None if it is not known.
        doing: a few words of the executor.
    """

    done: int
    failed: int
    of: int
    rate: float = 0.0
    rest_seconds: float | None = None
    doing: str = ""


def rest_seconds(waiting: int, rate: float) -> float | None:
    if not waiting:
        return 0.0
    return waiting / rate if rate > 0 else None


class Rate:
    """Images a second over the last minute, or since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque([(clock(), 0)])

    def at(self, count: int) -> float:
        """The rate now that ``count`` images have ended since the start."""
        now = self._clock()
        while len(self._points) > 1 and self._points[1][0] <= now - WINDOW:
            self._points.popleft()
        begun, before = self._points[0]
        if now - self._points[-1][0] >= _STEP:
            self._points.append((now, count))
        return (count - before) / (now - begun) if now > begun else 0.0
