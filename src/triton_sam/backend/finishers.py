"""The threads that build and send responses which take time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from triton_sam.backend.jobs import SegmentJob


class Finishers:
    """Thread pools. No click waits for background responses, of ten masks each, or those to concepts, of hundreds."""

    def __init__(self, threads: int) -> None:
        self._people = ThreadPoolExecutor(threads, thread_name_prefix="finish")
        self._concepts = ThreadPoolExecutor(1, thread_name_prefix="finish-concepts")
        self._background = ThreadPoolExecutor(max(1, threads // 2), thread_name_prefix="finish-background")

    def submit(self, job: SegmentJob, action: Callable[[], object]) -> None:
        """Runs an action for a job."""
        pool = self._background if job.background else self._concepts if job.wants_concepts else self._people
        pool.submit(action)

    def close(self) -> None:
        """Finishes what was submitted and ends the threads."""
        for pool in (self._people, self._concepts, self._background):
            pool.shutdown(wait=True)
