"""Sends the response of every job exactly once, and counts the jobs that have none yet."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from triton_sam.backend.concept_queue import PromisedConcepts
from triton_sam.backend.finishers import Finishers
from triton_sam.backend.gpu_failure import end_soon, is_fatal
from triton_sam.backend.jobs import Metrics, QueueLimits, SegmentJob
from triton_sam.core.everything.driver import Progress
from triton_sam.engines.base import Decoded
from triton_sam.errors import Cancelled, InternalError, TritonSamError, Unavailable
from triton_sam.logs import about

log = logging.getLogger(__name__)
_FINISHERS = min(8, max(2, len(os.sched_getaffinity(0)) // 2))
SUPERSEDED = "the request was cancelled or superseded by a newer one of its session"


class SafeMetrics:
    """Metrics whose failures are logged: an error in a metric must not stop a worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def count(self, name: str, amount: int = 1) -> None:
        try:
            if amount:
                self._metrics.count(name, amount)
        except Exception:
            log.exception("counting %s failed", name)

    def set(self, name: str, value: float) -> None:
        try:
            self._metrics.set(name, value)
        except Exception:
            log.exception("setting %s failed", name)

    def count_waits(self, jobs: list[SegmentJob], step: str) -> None:
        """Counts queue times by what jobs have noted for a step. Triton's own queue time is always about zero.

        Those of background jobs are counted apart: they are long, and nobody minds.
        """
        for prefix, background in (("", False), ("background_", True)):
            waits = [max(0.0, job.timings[step]) for job in jobs if job.background is background]
            self.count(f"{prefix}turns", len(waits))
            self.count(f"{prefix}queue_microseconds", round(sum(waits) * 1e3))

    def count_rejected(self, jobs: list[SegmentJob]) -> None:
        """Counts requests for which a queue was full, or which waited too long."""
        for job in jobs:
            self.count("background_rejected" if job.background else "rejected")


class Responder:
    """Answers jobs. Call its methods without the lock, unless they say otherwise.

    Responses that take time (resized, packed, compressed) are built on a small thread pool, so that a large PNG delays
    no other decode.
    """

    def __init__(self, lock: threading.Lock, metrics: SafeMetrics, limits: QueueLimits) -> None:
        self._lock = lock
        self._metrics = metrics
        self._limits = limits
        #: Admitted jobs without a response, all and those in the background. Guarded by the lock.
        self.unanswered = self.unanswered_background = 0
        #: Of the same jobs. Guarded by the lock.
        self.concepts = PromisedConcepts()
        self._finishers = Finishers(_FINISHERS)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._sending: Future[None] | None = None

    def admit(self, job: SegmentJob) -> None:
        """Counts a job that will be answered. Under the lock."""
        self.unanswered += 1
        self.unanswered_background += job.background
        self.concepts.add(job)

    def cancel(self, jobs: list[SegmentJob]) -> None:
        """Answers CANCELLED to admitted jobs that have no response yet."""
        self._metrics.count("cancelled", sum(self.fail(job, Cancelled(SUPERSEDED)) for job in jobs))

    def refuse(self, job: SegmentJob, refusal: TritonSamError | None) -> None:
        """Answers a job that was not admitted; without a refusal it was."""
        if refusal is None:
            return
        job.reply.fail(refusal)
        if isinstance(refusal, Cancelled):
            self._metrics.count("cancelled")
        else:
            self._metrics.count_rejected([job])

    def fail(self, job: SegmentJob, error: TritonSamError) -> bool:
        """Answers an admitted job with an error, unless it has a response already; returns whether it had none."""
        settled = self._settle(job)
        if settled:
            job.reply.fail(error)
        return settled

    def fail_all(self, jobs: Iterable[SegmentJob], error: TritonSamError) -> None:
        """As :meth:`fail`."""
        for job in jobs:
            self.fail(job, error)

    def still_wanted(self, jobs: list[SegmentJob]) -> list[SegmentJob]:
        """Answers jobs that were cancelled or waited too long, and returns the others."""
        now = time.perf_counter()
        # Each check is a round trip to Triton, so jobs that have only just arrived are not checked.
        gone = [job for job in jobs if now - job.received > self._limits.patience and job.reply.is_cancelled()]
        late = [job for job in jobs if now - job.received > self._most_seconds(job) and job not in gone]
        self.cancel(gone)
        for job in late:
            seconds = self._most_seconds(job)
            self.fail(job, Unavailable(f"the request waited {seconds:g} s in the queue: try again in a moment"))
        self._metrics.count_rejected(late)
        return [job for job in jobs if job not in gone and job not in late]

    def _most_seconds(self, job: SegmentJob) -> float:
        return self._limits.background_seconds if job.background else self._limits.seconds

    def finish(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        """Builds and sends a job's response on this thread."""
        self._build(job, decoded)
        job.reply.flush()

    def _build(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        self._send(job, lambda: job.reply.succeed(job, decoded))

    def _send(self, job: SegmentJob, answer: Callable[[], None]) -> None:
        if job.answered:  # it was cancelled while it waited for this thread
            return
        try:
            answer()
        except Cancelled:
            self.cancel([job])
        except TritonSamError as error:
            self.fail(job, error)
        except Exception as error:
            self.fail(job, internal_error("answering", error, [job]))
        else:
            self._settle(job)

    def found_later(self, job: SegmentJob, progress: Progress) -> None:
        """Sends the answer of a request for everything, on the thread pool."""
        self._finishers.submit(job, lambda: self._send(job, lambda: job.reply.found(job, progress)))

    def finish_later(self, job: SegmentJob, decoded: list[Decoded], then: Callable[[], None] = lambda: None) -> None:
        """Builds and sends a job's response on the thread pool, then calls ``then``. May be called under the lock."""

        def finish() -> None:
            try:
                self.finish(job, decoded)
            finally:
                then()

        self._finishers.submit(job, finish)

    def finish_light(self, answers: list[tuple[SegmentJob, list[Decoded]]]) -> None:
        """Sends responses that only have to be assembled.

        A single one, or those that are only copied, are sent on this thread: waking another one costs as much. Several
        that Triton takes are sent by one dedicated thread while the next batch is decoded. That batch's responses wait
        until these are out: requests that arrive meanwhile make the next batch larger, which is worth more than an
        early start.
        """
        if self._sending is not None:
            self._sending.result()
            self._sending = None
        if not answers:
            return
        if len(answers) == 1 or answers[0][0].only_copied:
            self._finish_all(answers)
        else:
            self._sending = self._sender.submit(self._finish_all, answers)

    def close(self) -> None:
        """Sends what is left and ends the thread pools."""
        self._finishers.close()
        self._sender.shutdown(wait=True)

    def _finish_all(self, answers: list[tuple[SegmentJob, list[Decoded]]]) -> None:
        for job, decoded in answers:
            self._build(job, decoded)
        for job, _ in answers:
            job.reply.flush()

    def _settle(self, job: SegmentJob) -> bool:
        """Marks a job as answered. Returns False if it was already."""
        with self._lock:
            if job.answered:
                return False
            job.answered = True
            self.unanswered -= 1
            self.unanswered_background -= job.background
            self.concepts.add(job, -1)
            return True


def internal_error(step: str, error: Exception, jobs: Iterable[SegmentJob]) -> InternalError:
    """Logs an unexpected exception with the requests' ids and returns the error for the client.

    Call it in the ``except`` block. If the GPU has failed for good, the process ends a moment later.
    """
    log.exception("%s failed", step, extra=about(*(job.request_id for job in jobs)))
    if is_fatal(error):
        end_soon()
    return InternalError(f"{step} failed on the server ({type(error).__name__}); its log says why")
