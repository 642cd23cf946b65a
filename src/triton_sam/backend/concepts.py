"""Looks for concepts in images, beside clicks: words and examples of the requests whose turn it is.

The unit is a row: one concept of one request. Sessions take turns with their rows, so a request with sixteen concepts
does not hold up one with a single concept. A request that is cancelled, or whose client is gone, ends before its next
row, or before the next mask of its answer. Requests in the background come after those of people.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from triton_sam.backend.concept_queue import ConceptQueue, Entry, Task, entries_of
from triton_sam.backend.decodes import LONGEST_WAIT, DecodeWorker
from triton_sam.backend.everything import EverythingRunner
from triton_sam.backend.jobs import ASK_SECONDS, SegmentJob
from triton_sam.backend.responder import Responder, SafeMetrics, internal_error
from triton_sam.core.fair_queue import PeopleFirstQueue
from triton_sam.engines.base import Engine
from triton_sam.engines.concepts import ConceptEngine, Instances
from triton_sam.engines.priority import CONCEPT_NICENESS, lower_this_thread
from triton_sam.errors import QueueFull, TritonSamError


@dataclass(frozen=True, eq=False, slots=True)
class _Run:
    """Rows that are being looked for."""

    tasks: list[Task]
    started: float
    result: Callable[[], list[Instances]]


class ConceptRunner:
    """The requests for concepts of one model on one device, and the thread that serves them."""

    def __init__(
        self,
        engine: Engine,
        lock: threading.Lock,
        decodes: DecodeWorker,
        everything: EverythingRunner,
        responder: Responder,
        metrics: SafeMetrics,
    ) -> None:
        """
        Args:
            engine: one with ``capacity.concepts``.
            lock: the scheduler's.
            decodes, everything: begin no work that has to wait for concepts.
        """
        self._engine = cast("ConceptEngine", engine)
        self._responder = responder
        self._metrics = metrics
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._decodes = decodes
        self._everything = everything
        self._waiting = ConceptQueue()
        #: Since when the background waits, or when a row of it was begun last.
        self._background_since = 0.0
        self._closing = False
        self._begun: float | None = None
        # Only the arithmetic has a low priority: EncodePipeline gives the reason.
        self._low: ThreadPoolExecutor | None = None
        if engine.capacity.on_cpu:
            self._low = ThreadPoolExecutor(1, "concepts-low", lambda: lower_this_thread(CONCEPT_NICENESS))
        self._thread = threading.Thread(target=self._loop, name="concepts", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def seconds(self) -> float:
        """For how long the engine has been at its present rows; 0 if there are none."""
        begun = self._begun
        return 0.0 if begun is None else time.perf_counter() - begun

    # -- under the scheduler's lock --------------------------------------------------------------------------

    @property
    def queue(self) -> PeopleFirstQueue[Task]:
        """The rows that wait, for turns that are kept."""
        return self._waiting.tasks

    def refusal(self, job: SegmentJob, superseded: list[SegmentJob]) -> TritonSamError | None:
        """Why a request cannot be taken now: too many concepts of others have no answer, also before their encode."""
        waiting = self._responder.concepts.refusal(job, superseded)
        if waiting is None:
            return None
        return QueueFull(f"{waiting} concepts are waiting already: try again in a moment")

    def add(self, job: SegmentJob) -> None:
        """Takes a job whose image is encoded."""
        if job.background and not self._waiting.tasks.background:
            self._background_since = time.perf_counter()
        self._waiting.add(job)
        self._tell()

    def drop(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes and returns jobs; of one that is served now no further row is, and no further mask is built."""
        dropped = [entry for entry in self._waiting.entries if unwanted(entry.job)]
        self._forget(dropped)
        return [entry.job for entry in (*dropped, *self._waiting.drop_answers(unwanted))]

    def _forget(self, entries: list[Entry]) -> None:
        if entries:
            self._waiting.forget(entries)
            self._waiting.close(entries)
            self._tell()

    def _tell(self) -> None:
        of_people = self._waiting.of_people()
        self._decodes.yield_to(concepts=of_people)
        self._everything.yield_to(of_people)
        self._changed.notify_all()

    # -- without the lock ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes what was taken and ends the thread. Nothing may be added any more."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._low is not None:
            self._low.shutdown(wait=True)

    def _loop(self) -> None:
        running: _Run | None = None
        while True:
            with self._lock:
                tasks = self._next_tasks()
                while not (tasks or running):
                    if self._closing and not self._waiting.entries:
                        return
                    # Work in the background waits for searches too, which tell nobody that they have ended.
                    self._changed.wait(LONGEST_WAIT / 4 if self._waiting.tasks else None)
                    tasks = self._next_tasks()
            begun = self._begin(tasks) if tasks else None
            if running is not None:
                self._end(running)
            if begun is not None and not self._engine.capacity.overlaps:
                self._end(begun)
                begun = None
            running = begun
            self._begun = None if running is None else time.perf_counter()
            tasks, begun = [], None  # an idle thread keeps no image alive

    def _next_tasks(self) -> list[Task]:
        """Rows of one image for a call: of people, or of the background if nobody waits or it has waited long.

        Under the lock.
        """
        waiting, now = self._waiting.tasks, time.perf_counter()
        late = now - self._background_since > LONGEST_WAIT
        free = not (waiting.people or self._decodes.searches) or self._closing
        most = self._engine.capacity.concept_rows
        if waiting.background and (free or late):
            tasks = self._waiting.take(most, background=True)
            if tasks:
                self._background_since = now
                return tasks
        return self._waiting.take(most, background=False)

    def _still_wanted(self, tasks: list[Task]) -> list[Task]:
        """Without rows of requests that are cancelled, or have waited too long; these are answered."""
        now = time.perf_counter()
        asked = [entry for entry in entries_of(tasks) if now - entry.asked > ASK_SECONDS]
        for entry in asked:
            entry.asked = now
        wanted = self._responder.still_wanted([entry.job for entry in asked])
        with self._lock:
            self._forget([entry for entry in asked if entry.job not in wanted])
            return [task for task in tasks if task.entry in self._waiting.entries]

    def _begin(self, tasks: list[Task]) -> _Run | None:
        """Starts to look for rows; None if none is left, or if the engine raises and their requests are answered."""
        try:
            tasks = self._still_wanted(tasks)
            if not tasks:
                return None
            started = self._begun = time.perf_counter()
            new = [entry for entry in entries_of(tasks) if not entry.started]
            for entry in new:
                entry.started = started
                entry.job.mark_queue(started)
            self._metrics.count_waits([entry.job for entry in new], "queue")
            rows = [task.row for task in tasks]
            if self._low is not None:
                return _Run(tasks, started, self._low.submit(lambda: self._engine.begin_concepts(rows)()).result)
            return _Run(tasks, started, self._engine.begin_concepts(rows))
        except Exception as error:
            self._failed(tasks, error)
            return None

    def _end(self, run: _Run) -> None:
        """Takes a result, and answers the requests of which it was the last."""
        try:
            found = run.result()
        except Exception as error:
            self._failed(run.tasks, error)
            return
        seconds = time.perf_counter() - run.started
        self._metrics.count("concepts", len(found))
        self._metrics.count("concept_instances", sum(instances.found for instances in found))
        self._metrics.count("concept_microseconds", round(seconds * 1e6))
        for entry in entries_of(run.tasks):
            entry.seconds += seconds
        for task, instances in zip(run.tasks, found, strict=True):
            task.entry.found[task.index] = instances
        self._answer(run.tasks)

    def _answer(self, tasks: list[Task]) -> None:
        """Answers the requests of which nothing is left to do."""
        with self._lock:
            waiting = self._waiting.entries
            done = [entry for entry in entries_of(tasks) if entry in waiting and None not in entry.found]
            if done:
                self._waiting.forget(done)
                self._tell()
            for entry in done:
                self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        """Lets the answer be built. Under the lock: a cancel always finds the job."""
        found = tuple(instances for instances in entry.found if instances is not None)
        text = sum(instances.text_ms for instances in found)
        entry.job.instances = found
        entry.job.timings["text"] = text
        entry.job.timings["detect"] = max(0.0, entry.seconds * 1e3 - text)
        self._responder.finish_later(
            entry.job, [instances.decoded for instances in found], lambda: self._finished(entry)
        )

    def _finished(self, entry: Entry) -> None:
        with self._lock:
            self._waiting.close([entry])
            self._changed.notify_all()

    def _failed(self, tasks: list[Task], error: Exception) -> None:
        """Answers the request of a call that failed, or repeats it for each request: one may be the cause."""
        entries = entries_of(tasks)
        if len(entries) == 1:
            self._fail(tasks, error)
            return
        for entry in entries:
            run = self._begin([task for task in tasks if task.entry is entry])
            if run is not None:
                self._end(run)

    def _fail(self, tasks: list[Task], error: Exception) -> None:
        with self._lock:
            failed = [entry for entry in entries_of(tasks) if entry in self._waiting.entries]
            self._forget(failed)
        jobs = [entry.job for entry in failed]
        reported: TritonSamError
        reported = error if isinstance(error, TritonSamError) else internal_error("looking for concepts", error, jobs)
        self._responder.fail_all(jobs, reported)
