"""The threads that build and send responses which take time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from triton_sam.backend.jobs import SegmentJob


class Finishers:
    """A thread pool. Background responses, of ten masks each, have threads of their own: no click waits for them."""

    def __init__(self, threads: int) -> None:
        self._people = ThreadPoolExecutor(threads, thread_name_prefix="finish")
        self._background = ThreadPoolExecutor(max(1, threads // 2), thread_name_prefix="finish-background")

    def submit(self, job: SegmentJob, action: Callable[[], object]) -> None:
        """Runs an action for a job."""
        (self._background if job.background else self._people).submit(action)

    def close(self) -> None:
        """Finishes what was submitted and ends the threads."""
        self._people.shutdown(wait=True)
        self._background.shutdown(wait=True)
