"""Decodes background requests, for which no person waits: in chunks between clicks, as everything mode does.

A chunk has rows of several requests if the engine takes images together, so that a job of many images with few objects
keeps a GPU busy. A request that is cancelled, or whose client is gone, ends before its next chunk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from triton_sam.backend.decodes import DecodeWorker
from triton_sam.backend.jobs import ASK_SECONDS, SegmentJob
from triton_sam.backend.responder import Responder, SafeMetrics, internal_error
from triton_sam.core.fair_queue import FairQueue, background_share
from triton_sam.engines.base import Decoded, Engine, Row
from triton_sam.errors import TritonSamError, Unavailable


@dataclass(eq=False, slots=True)
class _Entry:
    """A request of which rows are decoded."""

    job: SegmentJob
    decoded: list[Decoded] = field(default_factory=list)
    started: float = 0.0
    asked: float = 0.0

    @property
    def left(self) -> list[Row]:
        return self.job.rows()[len(self.decoded) :]


_Chunk = list[tuple[_Entry, list[Row]]]


class BackgroundDecodes:
    """The background requests of one model on one device whose images are encoded, and the thread that serves them."""

    def __init__(
        self,
        engine: Engine,
        lock: threading.Lock,
        decodes: DecodeWorker,
        responder: Responder,
        metrics: SafeMetrics,
        on_room: Callable[[], None],
        *,
        capacity: int,
    ) -> None:
        """
        Args:
            lock: the scheduler's.
            on_room: called under the lock when :attr:`has_room` may have become true.
            capacity: of the queue of clicks.
        """
        self._engine = engine
        self._lock = lock
        self._decodes = decodes
        self._responder = responder
        self._metrics = metrics
        self._on_room = on_room
        self._changed = threading.Condition(lock)
        self._queue: FairQueue[SegmentJob] = FairQueue(background_share(capacity))
        self._open: list[_Entry] = []
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="background", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    # -- under the scheduler's lock --------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether further images may be encoded for it: those that wait for the decoder are in memory."""
        return len(self._queue) < 2 * self._engine.capacity.image_batches[-1]

    def add(self, job: SegmentJob) -> None:
        """Takes a job whose image is encoded."""
        self._queue.put(job, job.turn)
        self._changed.notify_all()

    def drop(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes and returns jobs; of one that is being decoded no further rows are."""
        begun = [entry for entry in self._open if unwanted(entry.job)]
        self._open = [entry for entry in self._open if entry not in begun]
        dropped = self._queue.take(unwanted)
        if dropped:
            self._on_room()
        return [entry.job for entry in begun] + dropped

    # -- without the lock ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes what was taken and ends the thread. Nothing may be added any more."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        entries: list[_Entry] = []
        while True:
            del entries  # an idle thread keeps no image alive
            with self._lock:
                while not (self._open or self._queue or self._closing):
                    self._changed.wait()
                if not (self._open or self._queue):
                    return
                entries = self._opened()
            try:
                chunk = self._next_chunk(entries)
            except Exception as error:
                self._fail([(entry, []) for entry in entries], error)
                continue
            if chunk:
                self._decode(chunk)
            del chunk

    def _opened(self) -> list[_Entry]:
        """The requests of the next chunk: enough to fill it, if there are. Under the lock."""
        left = self._decodes.rows_between - sum(len(entry.left) for entry in self._open)
        while (left > 0 or not self._open) and (job := self._next_job()) is not None:
            self._open.append(_Entry(job))
            left -= len(job.rows())
        self._on_room()
        return list(self._open)

    def _next_job(self) -> SegmentJob | None:
        """Removes the next job from the queue that may share a call of the decoder with those before it."""
        if not self._queue:
            return None
        if not self._open or self._engine.capacity.mixes_images:
            return self._queue.pop()
        first = self._open[0].job
        alike = self._queue.take(lambda job: job.embedding is first.embedding and job.multimask == first.multimask, 1)
        return alike[0] if alike else None

    def _next_chunk(self, entries: list[_Entry]) -> _Chunk:
        """Rows of requests that are still wanted."""
        now = time.perf_counter()
        asked = [entry for entry in entries if now - entry.asked > ASK_SECONDS]
        wanted = self._responder.still_wanted([entry.job for entry in asked])
        self._remove([entry for entry in asked if entry.job not in wanted])
        chunk: _Chunk = []
        room = self._decodes.rows_between
        for entry in asked:
            entry.asked = now
        for entry in entries:
            if entry in asked and entry.job not in wanted:
                continue
            rows = entry.left[:room]
            room -= len(rows)
            if rows or not entry.left:
                chunk.append((entry, rows))
        return chunk

    def _decode(self, chunk: _Chunk) -> None:
        """Decodes rows, and answers the requests of which they were the last."""
        rows = [row for _, part in chunk for row in part]

        def start() -> Callable[[], list[Decoded]]:
            now = time.perf_counter()
            begun = [entry for entry, _ in chunk if not entry.started]
            for entry in begun:
                entry.started = now
                entry.job.mark_queue(now)
            self._metrics.count_waits([entry.job for entry in begun], "queue")
            return self._decodes.start(rows, background=True)

        try:
            decoded = self._decodes.between(start, background=True)()
        except Exception as error:
            self._failed(chunk, error)
            return
        self._metrics.count("decodes", len(decoded))
        self._metrics.count("background_decodes", len(decoded))
        for entry, part in chunk:
            entry.decoded += decoded[: len(part)]
            decoded = decoded[len(part) :]
        done = self._remove([entry for entry, _ in chunk if not entry.left])
        for entry in done:
            entry.job.mark("decode", entry.started)
            self._responder.finish_later(entry.job, entry.decoded)

    def _failed(self, chunk: _Chunk, error: Exception) -> None:
        """Answers the requests of a chunk that failed, or decodes the rows of each alone: one may be the cause."""
        if len(chunk) > 1 and not isinstance(error, Unavailable):
            for entry, rows in chunk:
                self._decode([(entry, rows)])
        else:
            self._fail(chunk, error)

    def _fail(self, chunk: _Chunk, error: Exception) -> None:
        entries = self._remove([entry for entry, _ in chunk])
        jobs = [entry.job for entry in entries]
        reported: TritonSamError
        reported = error if isinstance(error, Unavailable) else internal_error("decoding", error, jobs)
        for job in jobs:
            self._responder.fail(job, reported)

    def _remove(self, entries: list[_Entry]) -> list[_Entry]:
        """Ends requests; returns those that were not dropped meanwhile."""
        with self._lock:
            ended = [entry for entry in entries if entry in self._open]
            self._open = [entry for entry in self._open if entry not in ended]
            return ended
