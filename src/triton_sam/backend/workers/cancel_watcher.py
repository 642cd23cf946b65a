"""Notices requests whose clients have cancelled them in Triton while they wait for a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from triton_sam.backend.jobs import SegmentJob

_CHECK_SECONDS = 0.05
#: Requests that are checked in one round: each check is a round trip to Triton.
_CHECKED_AT_ONCE = 32


class CancelWatcher:
    """Checks old requests again and again, on a thread of its own."""

    def __init__(
        self, waiting: Callable[[int], list[tuple[int, SegmentJob]] | None], cancelled: Callable[[int], None]
    ) -> None:
        """
        Args:
            waiting: the oldest requests by number, at most so many; waits for one, and returns None at the end.
            cancelled: called with the number of each request that was cancelled, once.
        """
        self._waiting = waiting
        self._cancelled = cancelled
        self._thread = threading.Thread(target=self._run, name="cancels", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        told: set[int] = set()
        while (waiting := self._waiting(_CHECKED_AT_ONCE)) is not None:
            oldest = time.perf_counter() - _CHECK_SECONDS
            told &= {number for number, _ in waiting}
            for number, job in waiting:
                if job.received < oldest and number not in told and job.reply.is_cancelled():
                    told.add(number)
                    self._cancelled(number)
            pause.wait(_CHECK_SECONDS)
