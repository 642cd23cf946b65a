"""Images on their way through an engine: prepared by some threads, encoded by one, several at a time where that pays.

A batch is what is ready when the encoder becomes free; nobody waits for a partner that may never come. Only where
other images are being prepared at that moment it waits for them, for a few milliseconds at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from triton_sam.backend.jobs import Job
from triton_sam.core.fair_queue import FairQueue
from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Embedding, Engine
from triton_sam.engines.priority import lower_this_thread
from triton_sam.errors import InternalError, TritonSamError
from triton_sam.logs import about

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EncodeTask:
    """One image and all who wait for it.

    Attributes:
        begun, ready: when its preparation began and ended, by ``time.perf_counter``.
    """

    key: str
    image: EncodedImage
    waiters: list[Job]
    prepared: Any = None
    begun: float = 0.0
    ready: float = 0.0


class Owner(Protocol):
    """Who asked for encodes. None of these is called under the lock."""

    def still_wanted(self, jobs: list[Job]) -> list[Job]:
        """Answers those that nobody waits for or that waited too long; returns the others."""

    def encoded(self, task: EncodeTask, embedding: Embedding) -> None:
        """Takes an embedding; must let the task end by :meth:`EncodePipeline.finish`."""

    def encode_failed(self, task: EncodeTask, error: TritonSamError) -> None:
        """Answers the waiters of a task that has ended."""


class EncodePipeline:
    """Owns the threads that prepare and encode. What has no underscore and no word on the lock takes it itself."""

    def __init__(self, engine: Engine, lock: threading.Lock, owner: Owner, *, waiting: int, window: float) -> None:
        """
        Args:
            lock: the owner's.
            waiting: images that may wait before others are refused.
            window: seconds for which the encoder waits for images that are being prepared.
        """
        self._engine = engine
        self._owner = owner
        self._lock = lock
        self._window = window
        self._may_prepare = threading.Condition(lock)
        self._may_encode = threading.Condition(lock)
        self.waiting: FairQueue[EncodeTask] = FairQueue(waiting)
        #: By image key, from :meth:`add` to :meth:`finish`.
        self.tasks: dict[str, EncodeTask] = {}
        self._preparing = 0
        self._ready: list[EncodeTask] = []
        self._encoding = 0
        self._encode_started: float | None = None
        self._closing = False
        # Only the arithmetic yields to clicks. Whoever talks to Triton holds its locks meanwhile, and a thread of low
        # priority that is put aside in that moment would make all others wait.
        self._background: ThreadPoolExecutor | None = None
        if engine.capacity.lowers_encodes:
            self._background = ThreadPoolExecutor(
                engine.capacity.preparers + 1, thread_name_prefix="background", initializer=lower_this_thread
            )
        self._preparers = [
            threading.Thread(target=self._prepare_loop, name=f"prepare-{number}", daemon=True)
            for number in range(engine.capacity.preparers)
        ]
        self._encoder = threading.Thread(target=self._encode_loop, name="encode", daemon=True)
        for thread in (*self._preparers, self._encoder):
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all its threads run."""
        return self._encoder.is_alive() and all(thread.is_alive() for thread in self._preparers)

    @property
    def encode_seconds(self) -> float:
        """For how long the present image has been prepared or encoded; 0 when there is none."""
        started = self._encode_started
        return 0.0 if started is None else time.perf_counter() - started

    @property
    def has_one(self) -> bool:
        """Whether the image that is encoded is the only one."""
        return self._encoding == 1 and not (self._preparing or self._ready or self.waiting)

    # -- under the owner's lock ------------------------------------------------------------------------------

    def add(self, task: EncodeTask, turn: Hashable) -> None:
        """Lets an image wait for its turn; the owner has looked at ``waiting.full``."""
        self.tasks[task.key] = task
        self.waiting.put(task, turn)
        self._may_prepare.notify()

    def drop_waiters(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Takes out jobs, and images that were not begun and that nobody waits for any more."""
        dropped = []
        for task in self.tasks.values():
            dropped += [job for job in task.waiters if unwanted(job)]
            task.waiters = [job for job in task.waiters if not unwanted(job)]
        for task in self.waiting.take(lambda task: not task.waiters):
            self.finish(task)
        return dropped

    def finish(self, task: EncodeTask) -> list[Job]:
        """Ends a task and returns those who wait for it: from now on an equal image is a new one."""
        self.tasks.pop(task.key, None)
        return task.waiters

    def stop_taking(self) -> None:
        """Lets the threads end when all that was accepted is done."""
        self._closing = True
        self._may_prepare.notify_all()
        self._may_encode.notify_all()

    # -- without the lock ------------------------------------------------------------------------------------

    def join(self) -> None:
        """Waits for the threads, after :meth:`stop_taking`."""
        for thread in (*self._preparers, self._encoder):
            thread.join()
        if self._background is not None:
            self._background.shutdown(wait=True)

    def _run(self, action: Callable[..., Any], *arguments: Any) -> Any:
        if self._background is None:
            return action(*arguments)
        return self._background.submit(action, *arguments).result()

    def _prepare_loop(self) -> None:
        while True:
            with self._lock:
                while not (self.waiting and self._has_room):
                    if self._closing and not self.waiting:
                        return
                    self._may_prepare.wait()
                task = self.waiting.pop()
                self._preparing += 1
                if self._encode_started is None:
                    self._encode_started = time.perf_counter()
            failure = self._prepare(task)
            with self._lock:
                self._preparing -= 1
                self._encode_started = time.perf_counter()  # something has moved
                if failure is not None or not task.waiters:
                    self.finish(task)
                elif task.prepared is None:  # somebody came for it just when nobody wanted it any more
                    self.waiting.put(task, task.waiters[0].turn)
                else:
                    self._ready.append(task)
                batch = self._take_batch() if self._is_alone(task) else []
                self._note_idle()
                self._may_encode.notify()
                self._may_prepare.notify()
            if failure is not None:
                self._owner.encode_failed(task, failure)
            if batch:
                self._encode(batch)
            del task, failure, batch  # an idle thread keeps no image alive

    def _is_alone(self, task: EncodeTask) -> bool:
        """Whether an image is encoded by the thread that has prepared it, instead of waking another one."""
        others = self._preparing or self._encoding or self.waiting
        return self._engine.capacity.answers_at_once and self._ready == [task] and not others

    @property
    def _has_room(self) -> bool:
        return self._preparing + len(self._ready) + self._encoding < self._engine.capacity.ahead

    def _note_idle(self) -> None:
        if not (self._preparing or self._ready or self._encoding):
            self._encode_started = None

    def _prepare(self, task: EncodeTask) -> TritonSamError | None:
        """Fills ``task.prepared`` where somebody still wants it; returns why it cannot be."""
        try:
            if not self._drop_unwanted(task):
                return None
            task.begun = time.perf_counter()
            task.prepared = self._run(self._engine.prepare, task.image)
            task.ready = time.perf_counter()
        except TritonSamError as error:
            return error
        except Exception as error:
            return failed("reading the image", error, list(task.waiters))
        return None

    def _drop_unwanted(self, task: EncodeTask) -> bool:
        """Whether anybody still waits."""
        with self._lock:
            asked = list(task.waiters)
        staying = self._owner.still_wanted(asked)
        with self._lock:
            task.waiters = [job for job in task.waiters if job in staying or job not in asked]
            return bool(task.waiters)

    def _encode_loop(self) -> None:
        while True:
            with self._lock:
                while self._encoding or not self._ready:
                    if self._closing and not (self._preparing or self.waiting or self._encoding):
                        self._may_prepare.notify_all()
                        return
                    self._may_encode.wait()
                self._await_others()
                batch = self._take_batch()
            self._encode(batch)
            del batch  # an idle thread keeps no image alive

    def _take_batch(self) -> list[EncodeTask]:
        """Under the lock: what is encoded now."""
        batch, self._ready = self._next_batch()
        self._encoding = len(batch)
        self._encode_started = time.perf_counter()
        return batch

    def _encode(self, batch: list[EncodeTask]) -> None:
        """Encodes what was taken, and hands it over."""
        embeddings: list[Embedding] = []
        failure: TritonSamError | None = None
        try:
            if batch:
                embeddings = self._run(self._engine.encode, [task.prepared for task in batch])
        except TritonSamError as error:
            failure = error
        except Exception as error:
            failure = failed("encoding", error, [job for task in batch for job in task.waiters])
        self._hand_over(batch, embeddings, failure)
        with self._lock:
            self._encoding = 0
            self._encode_started = time.perf_counter()
            self._note_idle()
            self._may_prepare.notify_all()
            self._may_encode.notify()

    def _await_others(self) -> None:
        """Under the lock: waits a little for images that are on their way into this batch."""
        deadline = time.perf_counter() + self._window
        most = self._engine.capacity.image_batches[-1]
        while self._preparing and len(self._ready) < most and (left := deadline - time.perf_counter()) > 0:
            self._may_encode.wait(left)

    def _next_batch(self) -> tuple[list[EncodeTask], list[EncodeTask]]:
        """Under the lock: (what is encoded now, what stays); images that nobody waits for any more are in neither."""
        for task in self._ready:
            if not task.waiters:
                self.finish(task)
        wanted = [task for task in self._ready if task.waiters]
        # Five at a time cost as much as eight where the engine knows batches of four and eight: four, then one.
        count = max((size for size in self._engine.capacity.image_batches if size <= len(wanted)), default=0)
        return wanted[:count], wanted[count:]

    def _hand_over(self, batch: list[EncodeTask], embeddings: list[Embedding], failure: TritonSamError | None) -> None:
        for index, task in enumerate(batch):
            task.prepared = None
            told = failure
            if told is None:
                try:
                    self._owner.encoded(task, embeddings[index])
                    continue
                except Exception as error:
                    told = failed("keeping an embedding", error, list(task.waiters))
            with self._lock:
                self.finish(task)
            self._owner.encode_failed(task, told)


def failed(step: str, error: Exception, jobs: Iterable[Job]) -> InternalError:
    """What a client is told of an error of ours; called where it was caught, and logs it with the requests' ids."""
    log.exception("%s failed", step, extra=about(*(job.request_id for job in jobs)))
    return InternalError(f"{step} failed on the server ({type(error).__name__}); its log says why")
