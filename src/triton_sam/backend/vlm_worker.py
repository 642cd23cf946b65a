"""Queue and batches of one vision-language model in one process.

Threads: lanes, which answer batches; a loader while the model loads; a housekeeper for timeouts and unloading.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from triton_sam.backend.gpu_failure import end_soon, is_fatal
from triton_sam.backend.vlm_loader import Memory, VlmLoader
from triton_sam.engines.vlm.base import Ending, Engine, Question
from triton_sam.errors import Cancelled, InternalError, QueueFull, TritonSamError, Unavailable
from triton_sam.logs import about
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
_TICK_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0
_CANCELLED = "the client has cancelled this request"


class VlmReply(Protocol):
    """Sends the response of one question, piece by piece. Thread-safe; calls after the end are ignored."""

    def piece(self, text: str) -> None: ...

    def end(self, ending: Ending) -> None: ...

    def fail(self, error: TritonSamError) -> None: ...

    def is_gone(self) -> bool: ...

    @property
    def ended(self) -> bool: ...


@dataclass(eq=False)
class VlmJob:
    """A queued question."""

    question: Callable[[], Question]
    reply: VlmReply
    received: float = field(default_factory=time.monotonic)
    request_id: str = ""


class VlmWorker:
    """Queues questions and answers them in batches through their replies."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Engine],
        memory: Memory,
        settings: Settings,
        count: Callable[[str, int], None] = lambda name, amount: None,
    ) -> None:
        """
        Args:
            load: makes the engine and registers it in ``memory``; takes minutes, and raises our errors.
            count: takes the name of a metric and its increment.
        """
        self._name = name
        self._memory = memory
        self._settings = settings
        self._count = count
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: list[VlmJob] = []
        self._busy = 0
        self._closing = False
        self._loader = VlmLoader(name, load, memory, self._changed, self._take_all, count)
        self._lanes = [
            threading.Thread(target=self._run_lane, args=(number,), name=f"vlm-lane-{number}", daemon=True)
            for number in range(settings.vlm_lanes)
        ]
        self._housekeeper = threading.Thread(target=self._keep_house, name="vlm-housekeeper", daemon=True)
        for thread in (*self._lanes, self._housekeeper):
            thread.start()

    def submit(self, job: VlmJob) -> None:
        """Queues a question. The first one starts loading the model."""
        with self._lock:
            if self._closing:
                raise Unavailable("the server is stopping: try again on another one or in a moment")
            self._loader.raise_recent_failure()
            if len(self._jobs) >= self._settings.vlm_queue:
                self._count("vlm_rejected", 1)
                raise QueueFull(f"{len(self._jobs)} questions are waiting already: try again in a moment")
            self._jobs.append(job)
            self._loader.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Finishes the batches and the load in progress, refuses queued questions, and ends the threads."""
        with self._lock:
            self._closing = True
            waiting, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in waiting:
            job.reply.fail(Unavailable("the server is stopping: try again on another one or in a moment"))
        for thread in (*self._lanes, self._housekeeper):
            thread.join()
        self._loader.join()
        self._loader.unload("the server is stopping")

    @property
    def closing(self) -> bool:
        """Whether it is closing, so that a wait on its behalf can end."""
        return self._closing

    @property
    def loading_seconds(self) -> float | None:
        """For how long the model has been loading; None if it is not."""
        return self._loader.loading_seconds

    def _take_all(self) -> Callable[[TritonSamError], None]:
        """Empties the queue, under the lock, and returns what fails those jobs, without it."""
        taken, self._jobs = self._jobs, []

        def fail_all(error: TritonSamError) -> None:
            for job in taken:
                job.reply.fail(error)

        return fail_all

    # -- lanes -----------------------------------------------------------------------------------------------

    def _run_lane(self, number: int) -> None:
        while (taken := self._next_batch(number)) is not None:
            engine, jobs = taken
            try:
                self._answer(engine, jobs)
            except BaseException as error:  # a panic of a Rust library is no Exception, and clients must not hang
                log.exception("answering failed", extra=about(*(job.request_id for job in jobs)))
                for job in jobs:
                    job.reply.fail(InternalError(f"answering failed on the server ({type(error).__name__})"))
                if is_fatal(error):
                    end_soon()
            finally:
                del engine, taken  # or an unloaded model would stay in memory
                with self._lock:
                    self._busy -= 1
                    self._loader.last_used = time.monotonic()
                    self._touch()
                    self._changed.notify_all()

    def _next_batch(self, number: int) -> tuple[Engine, list[VlmJob]] | None:
        """Waits for questions, and for others that join their batch; None when closing."""
        gather = self._settings.vlm_gather_ms / 1e3
        with self._lock:
            while True:
                if self._closing:
                    return None
                engine = self._loader.engine
                if engine is None or self._must_wait(number, engine):
                    engine = None  # or an unloaded model would stay in memory while this lane waits
                    self._changed.wait()
                    continue
                left = self._jobs[0].received + gather - time.monotonic()
                if left > 0 and len(self._jobs) < engine.batch:
                    engine = None
                    self._changed.wait(left)
                    continue
                jobs, self._jobs = self._jobs[: engine.batch], self._jobs[engine.batch :]
                self._busy += 1
                self._touch()
                return engine, jobs

    def _must_wait(self, number: int, engine: Engine) -> bool:
        """Whether this lane has nothing to do. A model that is asked to leave begins no new batch.

        A lane works only while all lanes before it do: a thread's first work on a GPU takes seconds.
        """
        my_turn = self._busy >= number if engine.concurrent else number == 0
        return self._loader.unloading or not self._jobs or not my_turn or self._memory.asked_to_leave

    def _answer(self, engine: Engine, jobs: list[VlmJob]) -> None:
        prepared: list[Any] = []
        batch: list[VlmJob] = []
        for job in jobs:
            if job.reply.is_gone():
                job.reply.fail(Cancelled(_CANCELLED))
                continue
            try:
                prepared.append(engine.prepare(job.question()))
            except TritonSamError as error:
                job.reply.fail(error)
            except Exception as error:
                log.exception("a question cannot be prepared", extra=about(job.request_id))
                job.reply.fail(InternalError(f"reading the question failed on the server ({type(error).__name__})"))
            else:
                batch.append(job)
        if batch:
            self._count("vlm_batches", 1)
            self._count("vlm_questions", len(batch))
            engine.answer(prepared, [job.reply for job in batch])
        for job in batch:
            if not job.reply.ended:
                gone = job.reply.is_gone()
                job.reply.fail(Cancelled(_CANCELLED) if gone else InternalError("the server's answer is incomplete"))

    def _touch(self) -> None:
        """Records the use. Under the lock, so that the entry that other processes read never goes back in time."""
        with contextlib.suppress(OSError):  # a full disk must not stop answers
            self._memory.touch(busy=self._busy > 0)

    # -- housekeeping ----------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        next_line = 0.0
        while True:
            with self._lock:
                self._changed.wait(_TICK_SECONDS)
                if self._closing:
                    return
                loading = self.loading_seconds
                reason = self._reason_to_unload()
                self._loader.unloading = bool(reason)
                waiting = list(self._jobs)
            self._refuse_late(waiting, loading)
            if loading is None:
                next_line = _PROGRESS_SECONDS
            elif loading >= next_line:
                log.info("%s: loading, %.0f s so far", self._name, loading)
                next_line += _PROGRESS_SECONDS
            if reason:
                self._loader.unload(reason)
                with self._lock:
                    self._loader.unloading = False
                    if self._jobs:
                        self._loader.start()

    def _refuse_late(self, waiting: list[VlmJob], loading: float | None) -> None:
        """Fails jobs that were cancelled or waited too long. Without the lock, because ``is_gone`` takes time."""
        oldest = time.monotonic() - self._settings.vlm_wait_seconds
        gone = [job for job in waiting if job.reply.is_gone()]
        late = [job for job in waiting if job.received < oldest and job not in gone]
        with self._lock:
            mine = [job for job in self._jobs if job in gone or job in late]  # a lane may have taken one meanwhile
            self._jobs = [job for job in self._jobs if job not in mine]
        for job in mine:
            job.reply.fail(self._too_late(loading) if job in late else Cancelled(_CANCELLED))

    def _too_late(self, loading: float | None) -> Unavailable:
        self._count("vlm_rejected", 1)
        if loading is not None:
            return Unavailable(f"{self._name} is loading, {loading:.0f} s so far: try again in a moment")
        return Unavailable(
            f"the question waited {self._settings.vlm_wait_seconds:g} s in the queue: try again in a moment"
        )

    def _reason_to_unload(self) -> str:
        """Empty if the model stays loaded. Under the lock."""
        if self._loader.engine is None or self._busy:
            return ""
        if self._memory.asked_to_leave:
            return "another model needs the memory"
        idle = time.monotonic() - self._loader.last_used
        if self._settings.vlm_idle_seconds and not self._jobs and idle >= self._settings.vlm_idle_seconds:
            return f"idle for {idle:.0f} s"
        return ""
