"""Encodes images: several threads prepare them, one encodes them in batches.

A batch is what is ready when the encoder becomes free. If other images are being prepared at that moment, the encoder
waits for them for a few milliseconds at most. Images that only background requests want are prepared and encoded while
nobody waits for another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.responder import Responder, internal_error
from triton_sam.core.fair_queue import PeopleFirstQueue
from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Capacity, Embedding, Engine
from triton_sam.engines.priority import lower_this_thread
from triton_sam.errors import TritonSamError


@dataclass(eq=False, slots=True)
class EncodeTask:
    """One image and the jobs that wait for it.

    Attributes:
        begun, ready: start and end of its preparation, by ``time.perf_counter``.
        among_people: it takes its turn among people's images, although only background requests wait for it.
    """

    key: str
    image: EncodedImage
    waiters: list[SegmentJob]
    prepared: Any = None
    begun: float = 0.0
    ready: float = 0.0
    among_people: bool = False

    @property
    def background(self) -> bool:
        """Whether only background requests wait for it. Under the lock."""
        return bool(self.waiters) and all(job.background for job in self.waiters)


class EncodePipeline:
    """The queue of images and the threads that prepare and encode them."""

    def __init__(
        self,
        engine: Engine,
        lock: threading.Lock,
        responder: Responder,
        on_encoded: Callable[[EncodeTask, Embedding], None],
        may_run_ahead: Callable[[], bool],
        *,
        capacity: int,
        window: float,
    ) -> None:
        """
        Args:
            lock: the scheduler's.
            on_encoded: takes an embedding, and ends the task with :meth:`finish`; called without the lock.
            may_run_ahead: whether a background image may be begun now; called under the lock.
            capacity: of the queue.
            window: seconds for which the encoder waits for images that are being prepared.
        """
        self._engine = engine
        self._responder = responder
        self._on_encoded = on_encoded
        self._may_run_ahead = may_run_ahead
        self._lock = lock
        self._window = window
        #: Also notified when ``may_run_ahead`` may have become true.
        self.may_prepare = threading.Condition(lock)
        self._may_encode = threading.Condition(lock)
        self.waiting: PeopleFirstQueue[EncodeTask] = PeopleFirstQueue(capacity)
        #: By image key, from :meth:`add` to :meth:`finish`.
        self.tasks: dict[str, EncodeTask] = {}
        self._preparing = 0
        self._ready: list[EncodeTask] = []
        self._encoding = 0
        self._encode_started: float | None = None
        self._closing = False
        # On a CPU encodes take the cores that clicks need, so they run at a lower priority. Only the arithmetic does: a
        # thread that talks to Triton holds its locks, and if it were descheduled then, all others would wait.
        self._low: ThreadPoolExecutor | None = None
        if engine.capacity.on_cpu:
            self._low = ThreadPoolExecutor(engine.capacity.preparers + 1, "background", lower_this_thread)
        self._preparers = [
            threading.Thread(target=self._prepare_loop, name=f"prepare-{number}", daemon=True)
            for number in range(engine.capacity.preparers)
        ]
        self._encoder = threading.Thread(target=self._encode_loop, name="encode", daemon=True)
        for thread in (*self._preparers, self._encoder):
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return self._encoder.is_alive() and all(thread.is_alive() for thread in self._preparers)

    @property
    def encode_seconds(self) -> float:
        """For how long the current image has been prepared or encoded; 0 if there is none."""
        started = self._encode_started
        return 0.0 if started is None else time.perf_counter() - started

    @property
    def has_one(self) -> bool:
        """Whether the image that is being encoded is the only one."""
        return self._encoding == 1 and not (self._preparing or self._ready or self.waiting)

    # -- under the scheduler's lock --------------------------------------------------------------------------

    def add(self, task: EncodeTask, turn: Hashable) -> None:
        """Queues an image. The caller has checked ``waiting.refusal``."""
        self.tasks[task.key] = task
        self.waiting.put(task, turn, background=task.background and not task.among_people)
        self.may_prepare.notify()

    def join_task(self, task: EncodeTask, job: SegmentJob) -> None:
        """Lets a job wait for an image that waits or runs already. One in the background becomes a person's."""
        task.waiters.append(job)
        if not job.background:
            self.waiting.promote(task, job.turn)
            self.may_prepare.notify()

    def drop_waiters(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes and returns waiting jobs. Queued images that no job waits for any more are removed too."""
        dropped = []
        for task in self.tasks.values():
            dropped += [job for job in task.waiters if unwanted(job)]
            task.waiters = [job for job in task.waiters if not unwanted(job)]
        for task in self.waiting.take(lambda task: not task.waiters):
            self.finish(task)
        return dropped

    def finish(self, task: EncodeTask) -> list[SegmentJob]:
        """Ends a task and returns its waiters. From here on an equal image is a new task."""
        self.tasks.pop(task.key, None)
        return task.waiters

    def stop_taking(self) -> None:
        """Lets the threads end as soon as all queued images are done."""
        self._closing = True
        self.may_prepare.notify_all()
        self._may_encode.notify_all()

    # -- without the lock ------------------------------------------------------------------------------------

    def join(self) -> None:
        """Waits for the threads, after :meth:`stop_taking`."""
        for thread in (*self._preparers, self._encoder):
            thread.join()
        if self._low is not None:
            self._low.shutdown(wait=True)

    def _run(self, action: Callable[..., Any], *arguments: Any) -> Any:
        return action(*arguments) if self._low is None else self._low.submit(action, *arguments).result()

    def _prepare_loop(self) -> None:
        while True:
            with self._lock:
                while (task := self._next_task()) is None:
                    if self._closing and not self.waiting:
                        return
                    self.may_prepare.wait()
                self._preparing += 1
                if self._encode_started is None:
                    self._encode_started = time.perf_counter()
            failure = self._prepare(task)
            with self._lock:
                self._preparing -= 1
                self._encode_started = time.perf_counter()  # progress was made
                if failure is not None or not task.waiters:
                    self.finish(task)
                elif task.prepared is None:  # a job joined just after the last one had left
                    self.waiting.put(task, task.waiters[0].turn, background=task.background)
                else:
                    self._ready.append(task)
                batch = self._take_batch() if self._is_alone(task) else []
                self._note_idle()
                self._may_encode.notify()
                self.may_prepare.notify()
            if failure is not None:
                self._responder.fail_all(task.waiters, failure)
            if batch:
                self._encode(batch)
            del task, failure, batch  # an idle thread keeps no image alive

    def _is_alone(self, task: EncodeTask) -> bool:
        """Whether the thread that prepared an image also encodes it, instead of waking another thread."""
        if not self._engine.capacity.answers_at_once or self._ready != [task]:
            return False
        return not (self._preparing or self._encoding or self.waiting)

    def _next_task(self) -> EncodeTask | None:
        """Removes the next image to prepare from the queue, if there is one and room for it. Under the lock."""
        begun = self._preparing + len(self._ready) + self._encoding
        if self.waiting.people:
            return self.waiting.people.pop() if begun < self._engine.capacity.ahead else None
        if not self.waiting.background or begun >= _most_in_background(self._engine.capacity):
            return None
        return self.waiting.background.pop() if self._closing or self._may_run_ahead() else None

    def _note_idle(self) -> None:
        if not (self._preparing or self._ready or self._encoding):
            self._encode_started = None

    def _prepare(self, task: EncodeTask) -> TritonSamError | None:
        """Fills ``task.prepared`` if a job still waits for it. Returns the error if that fails."""
        try:
            if not self._drop_unwanted(task):
                return None
            task.begun = time.perf_counter()
            task.prepared = self._run(self._engine.prepare, task.image)
            task.ready = time.perf_counter()
        except TritonSamError as error:
            return error
        except Exception as error:
            return internal_error("reading the image", error, list(task.waiters))
        return None

    def _drop_unwanted(self, task: EncodeTask) -> bool:
        """Drops waiters that were cancelled or waited too long. Returns whether any job still waits."""
        with self._lock:
            checked = list(task.waiters)
        staying = self._responder.still_wanted(checked)
        with self._lock:
            task.waiters = [job for job in task.waiters if job in staying or job not in checked]
            return bool(task.waiters)

    def _encode_loop(self) -> None:
        while True:
            with self._lock:
                while self._encoding or not self._ready:
                    if self._closing and not (self._preparing or self.waiting or self._encoding):
                        self.may_prepare.notify_all()
                        return
                    self._may_encode.wait()
                self._await_others()
                batch = self._take_batch()
            self._encode(batch)
            del batch  # an idle thread keeps no image alive

    def _take_batch(self) -> list[EncodeTask]:
        """Removes the next batch from the ready images. Under the lock."""
        for task in [task for task in self._ready if not task.waiters]:
            self.finish(task)
        batch, self._ready = _next_batch(self._ready, self._engine.capacity.image_batches)
        self._encoding = len(batch)
        self._encode_started = time.perf_counter()
        return batch

    def _encode(self, batch: list[EncodeTask]) -> None:
        """Encodes a batch and hands it over."""
        embeddings: list[Embedding] = []
        failure: TritonSamError | None = None
        try:
            if batch:
                embeddings = self._run(self._engine.encode, [task.prepared for task in batch])
        except TritonSamError as error:
            failure = error
        except Exception as error:
            failure = internal_error("encoding", error, [job for task in batch for job in task.waiters])
        self._hand_over(batch, embeddings, failure)
        with self._lock:
            self._encoding = 0
            self._encode_started = time.perf_counter()
            self._note_idle()
            self.may_prepare.notify_all()
            self._may_encode.notify()

    def _await_others(self) -> None:
        """Waits briefly for images that are being prepared, so that they join this batch. Under the lock."""
        deadline = time.perf_counter() + self._window
        most = self._engine.capacity.image_batches[-1]
        while self._preparing and len(self._ready) < most and (left := deadline - time.perf_counter()) > 0:
            self._may_encode.wait(left)

    def _hand_over(self, batch: list[EncodeTask], embeddings: list[Embedding], failure: TritonSamError | None) -> None:
        for index, task in enumerate(batch):
            task.prepared = None
            reported = failure
            if reported is None:
                try:
                    self._on_encoded(task, embeddings[index])
                    continue
                except Exception as error:
                    reported = internal_error("caching an embedding", error, list(task.waiters))
            with self._lock:
                self.finish(task)
            self._responder.fail_all(task.waiters, reported)


def _most_in_background(capacity: Capacity) -> int:
    """How many images may be ahead for a background one to be begun: room for a batch of people's stays free."""
    return max(1, capacity.ahead - capacity.image_batches[-1])


def _next_batch(ready: list[EncodeTask], sizes: tuple[int, ...]) -> tuple[list[EncodeTask], list[EncodeTask]]:
    """(images to encode now, images that stay), without those that no job waits for. Under the lock."""
    ready = [task for task in ready if task.waiters]
    # People's images make a batch of their own, which takes less time than a full one.
    wanted = [task for task in ready if not task.background] or ready
    # If the engine has batches of four and eight, five cost as much as eight: encode four, then one.
    count = max((size for size in sizes if size <= len(wanted)), default=0)
    batch = wanted[:count]
    return batch, [task for task in ready if task not in batch]
