"""One vision-language model in one process: loads it when it is first asked, batches questions, lets it go again.

Threads: lanes, which answer batches; a loader while it loads; a housekeeper for everything that depends on time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from triton_sam.engines.vlm.base import Ending, Engine, Question
from triton_sam.errors import (
    Cancelled,
    InternalError,
    NotFound,
    QueueFull,
    SetupError,
    TritonSamError,
    Unavailable,
    WeightsError,
)
from triton_sam.logs import about
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
_TICK_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0
#: For so long a load that failed is not tried again: it takes minutes of disk and may have sent others away.
_FAILED_SECONDS = 5.0
_CUDA_ERROR = "CUDA error"
_GONE = "nobody waits for this answer any more"


class Reply(Protocol):
    """The way back to whoever asked. Any thread may call it; what comes after the end is dropped."""

    def piece(self, text: str) -> None: ...

    def end(self, ending: Ending) -> None: ...

    def fail(self, error: TritonSamError) -> None: ...

    def is_gone(self) -> bool: ...

    @property
    def ended(self) -> bool: ...


class Memory(Protocol):
    """What :class:`~triton_sam.backend.vlm_memory.MemoryLedger` is to a worker."""

    def touch(self, *, busy: bool) -> None: ...

    def leave(self) -> None: ...

    @property
    def asked_to_leave(self) -> bool: ...


@dataclass(eq=False)
class Job:
    """A question that was taken in."""

    question: Callable[[], Question]
    reply: Reply
    received: float = field(default_factory=time.monotonic)
    request_id: str = ""


class VlmWorker:
    """Questions in, answers out through their replies."""

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
            load: makes the engine and enters it in ``memory``; takes minutes, and raises our errors.
            count: gets the name of a metric and by how much it grows.
        """
        self._name = name
        self._load_engine = load
        self._memory = memory
        self._settings = settings
        self._count = count
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: list[Job] = []
        self._engine: Engine | None = None
        self._loading_since: float | None = None
        self._busy = 0
        self._used = time.monotonic()
        self._leaving = False
        self._closing = False
        self._loader: threading.Thread | None = None
        self._failed: TritonSamError | None = None
        self._failed_until = 0.0
        self._lanes = [
            threading.Thread(target=self._run_lane, args=(number,), name=f"vlm-lane-{number}", daemon=True)
            for number in range(settings.vlm_lanes)
        ]
        self._keeper = threading.Thread(target=self._keep_house, name="vlm-keeper", daemon=True)
        for thread in (*self._lanes, self._keeper):
            thread.start()

    def submit(self, job: Job) -> None:
        """Takes a question in; the first one begins to load the model."""
        with self._lock:
            if self._closing:
                raise Unavailable("the server is stopping: try again on another one or in a moment")
            if self._failed is not None and time.monotonic() < self._failed_until:
                raise type(self._failed)(str(self._failed))
            if len(self._jobs) >= self._settings.vlm_queue:
                self._count("vlm_rejected", 1)
                raise QueueFull(f"{len(self._jobs)} questions are waiting already: try again in a moment")
            self._jobs.append(job)
            self._begin_to_load()
            self._changed.notify_all()

    def close(self) -> None:
        """Finishes what is being answered and loaded, refuses what waits, ends the threads."""
        with self._lock:
            self._closing = True
            waiting, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in waiting:
            job.reply.fail(Unavailable("the server is stopping: try again on another one or in a moment"))
        for thread in (*self._lanes, self._keeper, *([self._loader] if self._loader else [])):
            thread.join()
        self._unload("the server stops")

    @property
    def closing(self) -> bool:
        """Whether it shall end: whoever waits for something on its behalf need not go on."""
        return self._closing

    @property
    def loading_seconds(self) -> float | None:
        """For how long it has been loading; None while it is not."""
        since = self._loading_since
        return None if since is None else time.monotonic() - since

    # -- loading ---------------------------------------------------------------------------------------------

    def _begin_to_load(self) -> None:
        """Under the lock; does nothing while it is loaded or loading: one load, however many ask."""
        if self._engine is None and self._loading_since is None and not self._leaving:
            self._loading_since = time.monotonic()
            self._loader = threading.Thread(target=self._load, args=(self._loader,), name="vlm-loader", daemon=True)
            self._loader.start()

    def _load(self, before: threading.Thread | None) -> None:
        if before is not None:  # it failed, and may still give memory back
            before.join()
        engine: Engine | None = None
        failure: TritonSamError | None = None
        began = time.monotonic()
        try:
            engine = self._load_engine()
        except WeightsError as error:  # what the machine lacks; callers are told as if they had asked for a file
            failure = NotFound(str(error))
        except SetupError as error:
            failure = InternalError(str(error))
        except TritonSamError as error:
            failure = error
        except BaseException as error:  # as in a lane
            log.exception("loading %s failed", self._name)
            failure = InternalError(f"loading {self._name} failed on the server ({type(error).__name__})")
        with self._lock:
            self._engine = engine
            self._loading_since = None
            if isinstance(failure, NotFound | InternalError):  # the next one would fail as well, and take as long
                self._failed, self._failed_until = failure, time.monotonic() + _FAILED_SECONDS
            self._used = time.monotonic()
            failed, self._jobs = (self._jobs, []) if failure is not None else ([], self._jobs)
            self._changed.notify_all()
        if failure is None:
            log.info("%s: ready after %.1f s", self._name, time.monotonic() - began)
            self._count("vlm_loads", 1)
            return
        log.error("%s: not loaded: %s", self._name, failure)
        for job in failed:
            job.reply.fail(failure)
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None  # their frames hold what was loaded
        gc.collect()
        _give_memory_back()

    def _unload(self, why: str) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is None:
            return
        del engine
        gc.collect()
        _give_memory_back()
        with contextlib.suppress(OSError):
            self._memory.leave()
        log.info("%s: unloaded, because %s", self._name, why)
        self._count("vlm_unloads", 1)

    # -- the lanes -------------------------------------------------------------------------------------------

    def _run_lane(self, number: int) -> None:
        while (taken := self._next_batch(number)) is not None:
            engine, jobs = taken
            try:
                self._answer(engine, jobs)
            except BaseException as error:  # a panic of a Rust library is no Exception, and nobody may wait for ever
                log.exception("answering failed", extra=about(*(job.request_id for job in jobs)))
                for job in jobs:
                    job.reply.fail(InternalError(f"answering failed on the server ({type(error).__name__})"))
                if _CUDA_ERROR in str(
                    error
                ):  # such a process cannot use the GPU any more; the supervisor brings it back
                    log.critical("%s: the GPU failed, so this process ends", self._name)
                    os._exit(1)
            finally:
                del engine, taken  # or an unloaded model would stay in memory
                with self._lock:
                    self._busy -= 1
                    self._used = time.monotonic()
                    self._touch()
                    self._changed.notify_all()

    def _next_batch(self, number: int) -> tuple[Engine, list[Job]] | None:
        """Waits for questions and for others to join them; None at the end."""
        gather = self._settings.vlm_gather_ms / 1e3
        with self._lock:
            while True:
                if self._closing:
                    return None
                engine = self._engine
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
        """Whether there is nothing to do for this lane; whoever is asked to leave begins nothing new.

        A later lane works only while the earlier ones do: a thread's first work on a GPU takes seconds.
        """
        my_turn = self._busy >= number if engine.concurrent else number == 0
        return self._leaving or not self._jobs or not my_turn or self._memory.asked_to_leave

    def _answer(self, engine: Engine, jobs: list[Job]) -> None:
        prepared: list[Any] = []
        asked: list[Job] = []
        for job in jobs:
            if job.reply.is_gone():
                job.reply.fail(Cancelled(_GONE))
                continue
            try:
                prepared.append(engine.prepare(job.question()))
            except TritonSamError as error:
                job.reply.fail(error)
            except Exception as error:
                log.exception("a question cannot be prepared", extra=about(job.request_id))
                job.reply.fail(InternalError(f"reading the question failed on the server ({type(error).__name__})"))
            else:
                asked.append(job)
        if asked:
            self._count("vlm_batches", 1)
            self._count("vlm_questions", len(asked))
            engine.answer(prepared, [job.reply for job in asked])
        for job in asked:
            if not job.reply.ended:
                gone = job.reply.is_gone()
                job.reply.fail(Cancelled(_GONE) if gone else InternalError("the answer broke off on the server"))

    def _touch(self) -> None:
        """Under the lock, so that what others read is never older than what they read before."""
        with contextlib.suppress(OSError):  # a full disk is no reason not to answer
            self._memory.touch(busy=self._busy > 0)

    # -- time ------------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        next_line = 0.0
        while True:
            with self._lock:
                self._changed.wait(_TICK_SECONDS)
                if self._closing:
                    return
                loading = self.loading_seconds
                why = self._reason_to_unload()
                self._leaving = bool(why)
                waiting = list(self._jobs)
            self._refuse_late(waiting, loading)
            if loading is None:
                next_line = _PROGRESS_SECONDS
            elif loading >= next_line:
                log.info("%s: loading, %.0f s so far", self._name, loading)
                next_line += _PROGRESS_SECONDS
            if why:
                self._unload(why)
                with self._lock:
                    self._leaving = False
                    if self._jobs:
                        self._begin_to_load()

    def _refuse_late(self, waiting: list[Job], loading: float | None) -> None:
        """Those who have waited too long, and those who are gone; asking for that takes time, so without the lock."""
        oldest = time.monotonic() - self._settings.vlm_wait_seconds
        gone = [job for job in waiting if job.reply.is_gone()]
        late = [job for job in waiting if job.received < oldest and job not in gone]
        with self._lock:
            mine = [job for job in self._jobs if job in gone or job in late]  # a lane may have taken one meanwhile
            self._jobs = [job for job in self._jobs if job not in mine]
        for job in mine:
            job.reply.fail(self._too_late(loading) if job in late else Cancelled(_GONE))

    def _too_late(self, loading: float | None) -> Unavailable:
        self._count("vlm_rejected", 1)
        if loading is not None:
            return Unavailable(f"{self._name} is loading, {loading:.0f} s so far: try again in a moment")
        return Unavailable(f"no turn came within {self._settings.vlm_wait_seconds:g} s: try again in a moment")

    def _reason_to_unload(self) -> str:
        """Under the lock; empty while the model stays."""
        if self._engine is None or self._busy:
            return ""
        if self._memory.asked_to_leave:
            return "another model needs the memory"
        idle = time.monotonic() - self._used
        if self._settings.vlm_idle_seconds and not self._jobs and idle >= self._settings.vlm_idle_seconds:
            return f"nobody has asked it for {idle:.0f} s"
        return ""


def _give_memory_back() -> None:
    """To the GPU, and to the system what the C library keeps for later."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
