"""A server on a clock of its own, for tests of the pace: no threads, no waiting."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from triton_sam.batch.executors.pacing import Pace, Sent


@dataclass
class SimulatedServer:
    """Computes up to ``capacity`` requests at a time: each by a worker of its own, or all of them as a batch.

    Attributes:
        service: seconds of one request; of a batch, of any size.
        queue: requests that may wait; others are refused.
        noise: share of the service time by which it varies.
        transfer: seconds on the network, for each request.
        says: whether answers tell how long they waited.
    """

    capacity: int
    service: float = 0.1
    queue: int = 1000
    batches: bool = False
    noise: float = 0.1
    transfer: float = 0.002
    retry_after: float | None = None
    says: bool = True
    seed: int = 0
    slower_from: float = float("inf")
    now: float = 0.0
    answered: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    levels: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[float, int, str, list[tuple[Sent, float, float]]]] = []
        self._number = itertools.count()
        self._waiting: deque[tuple[Sent, float]] = deque()
        self._busy = 0

    def run(self, pace: Pace, until: float, most: int | None = None) -> None:
        """Sends whatever the pace allows, until a time."""
        self._fill(pace)
        while self.now < until:
            if not self._events:
                self.now += max(pace.pause_left(self.now), 1e-3)
                self._fill(pace)
                continue
            self.now, _, kind, requests = heapq.heappop(self._events)
            if kind == "arrive":
                self._arrive(requests)
            elif kind == "refuse":
                pace.refused(requests[0][0], self.now, self.retry_after)
                self.refusals.append(self.now)
            elif kind == "done":
                self._busy -= self.capacity if self.batches else 1
                for request in requests:
                    self._at(self.transfer / 2, "answer", [request])
                self._start()
            elif kind == "answer":
                ((sent, arrived, begun),) = requests
                pace.answered(sent, self.now, begun - arrived if self.says else None)
                self.answered.append(self.now)
            self._fill(pace)
            if most is not None:
                assert pace.in_flight <= most
            self.levels.append((self.now, pace.limit))

    def rate(self, since: float) -> float:
        """Answers a second from a time on."""
        return sum(at >= since for at in self.answered) / (self.now - since)

    def level(self, since: float) -> float:
        """Mean limit from a time on."""
        seen = [limit for at, limit in self.levels if at >= since]
        return sum(seen) / len(seen)

    @property
    def best_rate(self) -> float:
        return self.capacity / self.service

    def _fill(self, pace: Pace) -> None:
        for _ in range(pace.room(self.now)):
            sent = pace.sent(self.now)
            self._at(self.transfer / 2, "arrive", [(sent, 0.0, 0.0)])

    def _arrive(self, requests: list[tuple[Sent, float, float]]) -> None:
        sent = requests[0][0]
        if len(self._waiting) >= self.queue and self._busy >= self.capacity:
            self._at(self.transfer / 2, "refuse", requests)
            return
        self._waiting.append((sent, self.now))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < self.capacity:
            size = min(len(self._waiting), self.capacity) if self.batches else 1
            taken = [(*self._waiting.popleft(), self.now) for _ in range(size)]
            self._busy += self.capacity if self.batches else 1
            factor = 1 + self.noise * self._random.uniform(-1, 1)
            self._at(self.service * factor * (4 if self.now >= self.slower_from else 1), "done", taken)

    def _at(self, delay: float, kind: str, requests: list[tuple[Sent, float, float]]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._number), kind, requests))
