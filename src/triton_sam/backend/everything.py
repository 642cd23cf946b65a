"""Finds everything in images, beside the clicks: one chunk of one request at a time, in turns.

Each chunk is decoded between two batches of clicks, so a click waits for one chunk at most. A request that is
cancelled, or whose client is gone, ends before its next chunk. Background requests come after those of people.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np

from triton_sam.backend.decodes import LONGEST_WAIT, DecodeWorker
from triton_sam.backend.following import Followed
from triton_sam.backend.jobs import ASK_SECONDS, SegmentJob
from triton_sam.backend.responder import Responder, internal_error
from triton_sam.core.everything.ahead import find_ahead
from triton_sam.core.everything.candidates import Place
from triton_sam.core.everything.driver import Find, Floats, Progress, find_with, run
from triton_sam.core.everything.grids import CropBox, plan
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.fair_queue import background_share
from triton_sam.core.prompt_values import FOREGROUND
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding, Engine, FindingEngine, Row
from triton_sam.engines.priority import lower_this_thread
from triton_sam.errors import QueueFull, TritonSamError

#: Requests for everything that may wait or run.
MOST_RUNS = 16
#: A crop of a job's image -> its embedding; it is encoded for that.
OpenCrop = Callable[[SegmentJob, CropBox], Embedding]


@dataclass(eq=False, slots=True)
class _Run:
    job: SegmentJob
    steps: Iterator[Progress] | None = None
    latest: Progress | None = None
    stopped: bool = False
    asked: float = 0.0
    followed: Followed | None = None
    begun: float = field(default_factory=time.perf_counter)


class EverythingRunner:
    """The requests for everything of one model on one device, and the thread that serves them."""

    def __init__(
        self, engine: Engine, lock: threading.Lock, decodes: DecodeWorker, responder: Responder, open_crop: OpenCrop
    ) -> None:
        """
        Args:
            lock: the scheduler's.
        """
        self._engine = engine
        self._decodes = decodes
        self._responder = responder
        self._open_crop = open_crop
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._runs: deque[_Run] = deque()
        self._dropped: list[_Run] = []
        self._background_step = self._stepped = 0.0
        self._concepts = 0
        self._closing = False
        # Measuring masks takes the cores that clicks need. Only the arithmetic yields: EncodePipeline gives the reason.
        self._measuring: ThreadPoolExecutor | None = None
        if engine.capacity.on_cpu:
            self._measuring = ThreadPoolExecutor(1, "everything-steps", lower_this_thread)
        self._thread = threading.Thread(target=self._loop, name="everything", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    # -- under the scheduler's lock --------------------------------------------------------------------------

    def refusal(self, *, background: bool) -> TritonSamError | None:
        """Why no further request can be taken now. Those in the background take no place from people."""
        waiting = len(self._runs) if background else self._of_people
        most = MOST_RUNS
        if background and len(self._runs) - self._of_people >= background_share(MOST_RUNS):
            most = waiting = background_share(MOST_RUNS)
        if waiting < most:
            return None
        return QueueFull(f"{waiting} requests for everything are waiting already: try again in a moment")

    def add(self, job: SegmentJob) -> None:
        """Takes a job whose image is encoded."""
        self._runs.append(_Run(job))
        self._decodes.yield_to(searches=self._of_people)
        self._changed.notify_all()

    @property
    def _of_people(self) -> int:
        return sum(not entry.job.background for entry in self._runs)

    def drop(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes and returns jobs; one that is computed now stops after its chunk."""
        dropped = [entry for entry in self._runs if unwanted(entry.job)]
        for entry in dropped:
            entry.stopped = True
            self._runs.remove(entry)
        self._dropped += dropped
        self._decodes.yield_to(searches=self._of_people)
        self._changed.notify_all()
        return [entry.job for entry in dropped]

    def yield_to(self, concepts: int) -> None:
        """Tells how many requests for concepts people wait for: beside them no chunk is begun."""
        self._concepts = concepts
        self._changed.notify_all()

    # -- without the lock ------------------------------------------------------------------------------------

    def follow(self, name: str) -> Followed | None:
        """The progress of a run by the name that its client gave; None if there is no such run."""
        with self._lock:
            return next((entry.followed for entry in self._runs if entry.followed and entry.job.run == name), None)

    def close(self) -> None:
        """Finishes what was taken and ends the thread. Nothing may be added any more."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._measuring is not None:
            self._measuring.shutdown(wait=True)

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not (self._dropped or self._closing or (self._runs and self._may_step())):
                    self._changed.wait(LONGEST_WAIT / 4 if self._runs else None)
                dropped, self._dropped = self._dropped, []
                if not (self._runs or dropped):
                    return
                entry = self._next_run()
            for ended in dropped:  # who follows one is told; that calls Triton, so not under the lock
                self._close(ended)
            if entry is None:
                continue
            try:
                self._advance(entry)
            except TritonSamError as error:
                self._end(entry)
                self._responder.fail(entry.job, error)
            except Exception as error:
                self._end(entry)
                self._responder.fail(entry.job, internal_error("finding everything", error, [entry.job]))

    def _may_step(self) -> bool:
        """Whether no concept comes first, or the searches have waited for long. Under the lock."""
        return not self._concepts or time.perf_counter() - self._stepped > LONGEST_WAIT

    def _next_run(self) -> _Run | None:
        """The run whose turn it is: of people first, but one in the background after a while. Under the lock."""
        now = time.perf_counter()
        late = now - self._background_step > LONGEST_WAIT
        entry = min(self._runs, key=lambda run: run.job.background is not late, default=None)
        if entry is not None:
            self._stepped = now
            self._runs.remove(entry)
            self._runs.append(entry)
            if entry.job.background:
                self._background_step = now
        return entry

    def _advance(self, entry: _Run) -> None:
        """One chunk of one run."""
        now = time.perf_counter()
        if now - entry.asked > ASK_SECONDS:
            entry.asked = now
            if entry.job.reply.is_cancelled():
                self._end(entry)
                self._responder.cancel([entry.job])
                return
        if entry.steps is None:
            entry.steps = self._steps(entry.job)
            with self._lock:
                entry.followed = Followed() if entry.job.run else None
        steps = entry.steps
        progress = self._measure(lambda: next(steps, None))
        if entry.stopped:
            return
        if progress is None:  # the last one was the answer
            assert entry.latest is not None
            entry.job.timings["everything"] = (time.perf_counter() - entry.begun) * 1e3
            self._end(entry)
            self._responder.found_later(entry.job, entry.latest)
        else:
            entry.latest = progress
            if entry.followed is not None:
                entry.followed.tell(progress)

    def _measure(self, action: Callable[[], Progress | None]) -> Progress | None:
        return action() if self._measuring is None else self._measuring.submit(action).result()

    def _end(self, entry: _Run) -> None:
        with self._lock:
            if not entry.stopped:
                entry.stopped = True
                self._runs.remove(entry)
                self._decodes.yield_to(searches=self._of_people)
        self._close(entry)

    @staticmethod
    def _close(entry: _Run) -> None:
        entry.steps = None
        if entry.followed is not None:
            entry.followed.end()

    # -- the work --------------------------------------------------------------------------------------------

    def _steps(self, job: SegmentJob) -> Iterator[Progress]:
        assert job.prompt is not None
        assert job.prompt.everything is not None
        assert job.embedding is not None
        options = job.prompt.everything
        if options.pred_iou_thresh is None:
            options = replace(options, pred_iou_thresh=self._engine.spec.pred_iou_thresh)
        frame, engine = job.embedding.frame, self._engine
        finder = cast("FindingEngine", engine) if engine.capacity.finds else None
        if finder is not None and not finder.can_find(options):
            finder = None
        rows = engine.capacity.find_points if finder is not None else self._decodes.rows_between

        def open_crop(crop: CropBox) -> Find:
            place = Place(crop, frame.width, frame.height)
            embedding = job.embedding if place.is_whole else self._open_crop(job, crop)
            assert embedding is not None
            if finder is None:
                return self._by_rows(embedding, place, options, rows, background=job.background)
            chunks = [chunk.points for chunk in plan(options, frame.width, frame.height, rows) if chunk.crop == crop]
            # On a stream of its own: clicks go first because theirs has a higher priority.
            return find_ahead(lambda points: finder.begin_find(embedding, points, place, options), chunks)

        return run(options, frame.width, frame.height, open_crop, most_rows=rows)

    def _by_rows(
        self, embedding: Embedding, place: Place, options: EverythingOptions, rows: int, *, background: bool
    ) -> Find:
        def decode(points: Floats, *, multimask: bool, mask_input: Floats | None = None) -> tuple[Floats, Floats]:
            asked = _rows(embedding, points, multimask, mask_input)
            begin = partial(self._decodes.start, asked, background=background)
            decoded = self._decodes.between(begin, background=background)()
            return (
                np.stack([answer.logits for answer in decoded if answer.logits is not None]),
                np.stack([answer.scores for answer in decoded]),
            )

        return find_with(decode, embedding.frame, place, options, rows)


def _rows(embedding: Embedding, points: Floats, multimask: bool, masks: Floats | None) -> list[Row]:
    """One row for each point [P,2], in pixels of the embedding's image; with its mask as a prompt if there are any."""
    label = np.array([FOREGROUND], np.int32)
    return [
        Row(embedding, ObjectPrompt(point[None], label, None, None if masks is None else masks[index]), multimask)
        for index, point in enumerate(points)
    ]
