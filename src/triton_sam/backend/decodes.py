"""Decodes clicks: a fair queue, a worker thread that decodes in batches, and a short cut for a single user.

If an engine decodes faster than a thread wakes up, a single user's click is decoded and answered by the thread that
received it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.responder import Responder, SafeMetrics, internal_error
from triton_sam.backend.single_user import SingleUserDetector
from triton_sam.core.fair_queue import FairQueue
from triton_sam.engines.base import Decoded, Engine, Row, YieldingEngine
from triton_sam.engines.priority import BESIDE_NICENESS, CLICK_NICENESS, lower_this_thread
from triton_sam.errors import Unavailable

log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Seconds after which work between clicks comes before a click, so that a crowd does not stop it for ever.
LONGEST_WAIT = 1.0
#: Rows of a chunk on a CPU, where one takes as long as a click.
_CPU_ROWS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Jobs that are being decoded."""

    batch: list[SegmentJob]
    started: float
    result: Callable[[], list[Decoded]]


@dataclass(frozen=True, slots=True, eq=False)
class _Chore:
    """Work on the engine that is no click."""

    action: Callable[[], Callable[[], Any]]
    since: float = field(default_factory=time.perf_counter)
    begun: Future[Callable[[], Any]] = field(default_factory=Future)

    def start(self) -> None:
        try:
            self.begun.set_result(self.action())
        except BaseException as error:
            self.begun.set_exception(error)


class DecodeWorker:
    """The click queue of one model and the thread that decodes it."""

    def __init__(
        self, engine: Engine, lock: threading.Lock, responder: Responder, metrics: SafeMetrics, *, capacity: int
    ) -> None:
        """
        Args:
            lock: the scheduler's.
            capacity: of the queue.
        """
        self._engine = engine
        self._lock = lock
        self._responder = responder
        self._metrics = metrics
        self._ready = threading.Condition(lock)
        self.queue: FairQueue[SegmentJob] = FairQueue(capacity)
        self._pings: list[Callable[[], None]] = []
        self._between: deque[_Chore] = deque()
        self._background: deque[_Chore] = deque()
        self._searches = self._concepts = 0
        self._single_user = SingleUserDetector()
        self._decoding = False
        self._closing = False
        # On a CPU decoding takes the cores, so it runs at a lower priority than the threads that accept and refuse
        # requests and report health. Only the arithmetic does: EncodePipeline gives the reason.
        self._low_priority: ThreadPoolExecutor | None = None
        if engine.capacity.on_cpu:
            self._low_priority = ThreadPoolExecutor(1, "decode", lambda: lower_this_thread(CLICK_NICENESS))
        # Clicks need not wait for what an engine decodes beside them.
        self._beside: ThreadPoolExecutor | None = None
        if engine.capacity.decodes_beside:
            self._beside = ThreadPoolExecutor(1, "beside", lambda: lower_this_thread(BESIDE_NICENESS))
        self._thread = threading.Thread(target=self._loop, name="clicks", daemon=True)
        self._thread.start()

    @property
    def rows_between(self) -> int:
        """How many rows work between clicks may begin at a time: a click that arrives then waits for them."""
        return _CPU_ROWS if self._engine.capacity.on_cpu else self._engine.capacity.rows

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def searches(self) -> int:
        """How many searches of people run. Under the scheduler's lock."""
        return self._searches

    # -- under the scheduler's lock --------------------------------------------------------------------------

    def add(self, job: SegmentJob) -> None:
        """Queues a job whose image is encoded."""
        self.queue.put(job, job.turn)
        self._ready.notify()

    def yield_to(self, *, searches: int | None = None, concepts: int | None = None) -> None:
        """Tells what people wait for besides clicks.

        Args:
            searches: for everything, between whose chunks no background work is begun.
            concepts: requests for concepts, beside which neither chunks nor background work are.
        """
        self._searches = self._searches if searches is None else searches
        self._concepts = self._concepts if concepts is None else concepts
        self._ready.notify()

    def may_decode_now(self, job: SegmentJob) -> bool:
        """Whether the thread that received a job may decode it with :meth:`decode_now`."""
        if not self._engine.capacity.answers_at_once:
            return False
        alone = self._single_user.click((job.session, job.image_key), job.received)
        return alone and len(job.rows()) == 1 and not (self.queue or self._decoding)

    # -- without the lock ------------------------------------------------------------------------------------

    def decode_now(self, job: SegmentJob) -> None:
        """Decodes and answers a job on this thread."""
        self._decode([job])
        with self._lock:
            self._single_user.answered(time.perf_counter())

    def between(self, start: Callable[[], Callable[[], _T]], *, background: bool = False) -> Callable[[], _T]:
        """Calls ``start`` on the worker thread when no click is waiting, and returns what it returns.

        Args:
            start: begins work on the engine and returns a function that waits for its result. Clicks that arrive then
                are behind it.
            background: it also waits for the work between clicks that a person waits for.
        """
        chore = _Chore(start)
        with self._lock:
            if self._closing:
                raise Unavailable("the server is stopping: try again on another one or in a moment")
            (self._background if background else self._between).append(chore)
            self._ready.notify()
        begun: Callable[[], _T] = chore.begun.result()
        return begun

    def ping(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` from the worker thread between two batches; it must be quick."""
        with self._lock:
            self._pings.append(callback)
            self._ready.notify()

    def close(self) -> None:
        """Decodes what is queued and ends the thread. Nothing may be added any more."""
        with self._lock:
            self._closing = True
            self._ready.notify_all()
        self._thread.join()
        for executor in (self._low_priority, self._beside):
            if executor is not None:
                executor.shutdown(wait=True)

    def _loop(self) -> None:
        running: _Run | None = None
        while True:
            with self._lock:
                self._decoding = running is not None
                chore = self._next_chore()
                while not (self.queue or self._pings or chore or self._closing or running):
                    self._ready.wait(LONGEST_WAIT / 4 if self._between or self._background else None)
                    chore = self._next_chore()
                pings, self._pings = self._pings, []
                batch = self._next_batch() if chore is None and self._may_begin(running) else []
                self._decoding = bool(batch or running)
                if not (batch or pings or running or chore):
                    return
            for callback in pings:
                try:
                    callback()
                except Exception:
                    log.exception("a ping could not be answered")
            if chore is not None:
                chore.start()
            begun = self._begin(batch)
            if running is not None:
                self._end(running)
            if begun is not None and not self._engine.capacity.overlaps:
                self._end(begun)
                begun = None
            running = begun
            pings, batch, begun, chore = [], [], None, None  # an idle worker keeps nothing alive

    def _next_chore(self) -> _Chore | None:
        """Work between clicks, if nothing is waiting that comes before it, or if it has waited long enough."""
        late = time.perf_counter() - LONGEST_WAIT
        first = bool(self.queue) or self._concepts > 0
        for chores, must_yield in ((self._between, first), (self._background, first or self._searches > 0)):
            if chores and (not must_yield or chores[0].since < late):
                return chores.popleft()
        return None

    def _may_begin(self, running: _Run | None) -> bool:
        """Whether to take a batch now. While another one is decoded, only if it is full: it may still grow."""
        return bool(self.queue) and (running is None or len(self.queue) >= self._engine.capacity.rows)

    def _next_batch(self) -> list[SegmentJob]:
        """The next job, and others that fit into the same call of the decoder."""
        capacity = self._engine.capacity
        first = self.queue.pop()
        room = capacity.rows - len(first.rows())

        def fits(job: SegmentJob) -> bool:
            nonlocal room
            alike = capacity.mixes_images or (job.embedding is first.embedding and job.multimask == first.multimask)
            if not alike or len(job.rows()) > room:
                return False
            room -= len(job.rows())
            return True

        return [first, *(self.queue.take(fits) if room > 0 else [])]

    def _decode(self, batch: list[SegmentJob]) -> None:
        """Decodes jobs; each is answered, also if the engine raises."""
        run = self._begin(batch)
        if run is not None:
            self._end(run)

    def _begin(self, batch: list[SegmentJob]) -> _Run | None:
        """Starts to decode jobs; None if none is left to decode. If the engine raises, they are answered."""
        try:
            batch = self._responder.still_wanted(batch)
            if not batch:
                return None
            started = time.perf_counter()
            for job in batch:
                job.mark_queue(started)
            self._metrics.count_waits(batch, "queue")
            return _Run(batch, started, self.start([row for job in batch for row in job.rows()]))
        except Exception as error:
            self._failed(batch, error)
            return None

    def start(self, rows: list[Row], *, background: bool = False) -> Callable[[], list[Decoded]]:
        """Starts to decode rows; returns a function that gives the result and must be called. On its thread only.

        Args:
            background: no person waits for them.
        """
        if background and self._beside is not None:
            return self._beside.submit(cast("YieldingEngine", self._engine).decode_beside, rows).result
        if self._low_priority is not None:
            return self._low_priority.submit(self._engine.decode, rows).result
        return self._engine.begin(rows)

    def _end(self, run: _Run) -> None:
        """Answers the jobs of a run."""
        try:
            decoded = run.result()
            self._metrics.count("decodes", len(decoded))
            for job in run.batch:
                job.mark("decode", run.started)
            light: list[tuple[SegmentJob, list[Decoded]]] = []
            for job in run.batch:
                count = len(job.rows())
                mine, decoded = decoded[:count], decoded[count:]
                if job.is_light(mine):
                    light.append((job, mine))
                else:
                    self._responder.finish_later(job, mine)
            self._responder.finish_light(light)
        except Exception as error:
            self._failed(run.batch, error)

    def _failed(self, batch: list[SegmentJob], error: Exception) -> None:
        """Answers the jobs of a batch that failed, or decodes each alone: one may be the cause."""
        reported = error if isinstance(error, Unavailable) else internal_error("decoding", error, batch)
        left = [job for job in batch if not job.answered]
        if len(left) > 1 and reported is not error:
            for job in left:
                self._decode([job])
        else:
            for job in left:
                self._responder.fail(job, reported)
