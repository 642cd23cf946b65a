"""Metrics of a worker on their way to a Triton process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

_REPORT_SECONDS = 0.05


class RelayedMetrics:
    """Collects counts and gauges and reports them in groups; see :class:`triton_sam.backend.metrics.TritonMetrics`."""

    def __init__(self, report: Callable[[dict[str, int], dict[str, float]], bool]) -> None:
        self._report = report
        self._counts: Counter[str] = Counter()
        self._levels: dict[str, float] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._loop, name="metrics", daemon=True).start()

    def count(self, name: str, amount: int = 1) -> None:
        with self._changed:
            self._counts[name] += amount
            self._changed.notify()

    def set(self, name: str, value: float) -> None:
        with self._changed:
            self._levels[name] = value
            self._changed.notify()

    def _loop(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                while not (self._counts or self._levels):
                    self._changed.wait()
            pause.wait(_REPORT_SECONDS)
            with self._changed:
                counts, self._counts = self._counts, Counter()
                levels, self._levels = self._levels, {}
            if not self._report(dict(counts), levels):  # nobody is there: kept for the next one
                with self._changed:
                    self._counts.update(counts)
                    self._levels = levels | self._levels
