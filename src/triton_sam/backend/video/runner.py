"""Tracks videos: steps of each session in the order of their numbers, those of several sessions together.

One thread does it, beside clicks: an engine that tracks does so at a low priority. Frames are encoded ahead by
:mod:`~triton_sam.backend.video.frames`, and responses are built by the responder. Every step is answered exactly once;
one that fails does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.encodes import EncodePipeline
from triton_sam.backend.freed_memory import return_freed_memory
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.responder import SUPERSEDED, Responder, SafeMetrics
from triton_sam.backend.sessions import SessionBook
from triton_sam.backend.video.frames import FrameEncoder
from triton_sam.backend.video.limits import VideoLimits
from triton_sam.backend.video.line import Line, VideoStep
from triton_sam.backend.video.store import SessionStore
from triton_sam.backend.video.turns import Turn, TurnComputer
from triton_sam.core.images import EncodedImage
from triton_sam.core.video.request import Do
from triton_sam.engines.tracking import TrackingEngine
from triton_sam.errors import Cancelled, InvalidInput, QueueFull, TritonSamError, Unavailable

_STOPPING = "the server is stopping: open the session on another one, or here in a moment"
#: Bytes of sessions that have ended, after which memory is returned to the operating system.
_MUCH_FREED = 16 * 1024 * 1024
_Failures = list[tuple[VideoStep, TritonSamError]]


class VideoRunner:
    """The video sessions of one model on one device, and the thread that tracks them."""

    # Many parameters: it is a part of the scheduler.
    def __init__(
        self,
        engine: TrackingEngine,
        lock: threading.Lock,
        cache: EmbeddingCache,
        encodes: EncodePipeline,
        responder: Responder,
        metrics: SafeMetrics,
        cancelled: SessionBook,
        limits: VideoLimits,
    ) -> None:
        """
        Args:
            lock: the scheduler's.
            cancelled: the scheduler's too.
        """
        self._lock = lock
        self._responder = responder
        self._metrics = metrics
        self._cancelled = cancelled
        self._limits = limits
        self._changed = threading.Condition(lock)
        self._store = SessionStore(limits)
        self._frames = FrameEncoder(engine.capacity, cache, encodes, responder, self._changed)
        self._turns = TurnComputer(engine, responder, metrics, limits, self)
        #: To be answered by the thread.
        self._failures: _Failures = []
        self._expired = 0
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="video", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def track_seconds(self) -> float:
        """For how long the present steps have been computed; 0 if there are none."""
        return self._turns.seconds

    # -- under the scheduler's lock --------------------------------------------------------------------------

    def drop(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes and returns jobs that wait. Those behind them in their sessions are answered too."""
        dropped: list[SegmentJob] = []
        for line in self._store:
            steps = [step for step in line.steps() if step is not line.running and unwanted(step.job)]
            if steps:
                self._failures += line.drop(steps)
                dropped += [step.job for step in steps]
            if steps and line.session is None and line.is_idle:  # it was never opened
                self._store.close(line)
        if dropped:
            self._changed.notify_all()
        return dropped

    # -- without the lock ------------------------------------------------------------------------------------

    def submit(self, job: SegmentJob, image: EncodedImage | None, failure: TritonSamError | None = None) -> None:
        """Takes a step, or raises TritonSamError.

        Args:
            image: its frame.
            failure: why the frame cannot be used: the answer when it is the step's turn.
        """
        assert job.video is not None
        step = VideoStep(job, job.video, image, failure=failure)
        step.brought_bytes = len(step.video.state or b"") if image is None else len(image.data)
        with self._lock:
            if self._closing:
                raise Unavailable(_STOPPING)
            if self._cancelled.is_cancelled(step.request.session, job.sequence):
                raise Cancelled(SUPERSEDED)
            line = self._open(step) if step.request.do is Do.OPEN else self._store.require(step.request.session)
            try:
                self._check_room(line, step)
            except TritonSamError:
                if line.session is None and line.is_idle:  # it was opened for this step
                    self._store.close(line)
                raise
            line.add(step)
            self._responder.admit(job)
            self._frames.feed(self._store.busy)  # not only when the thread is free
            self._changed.notify_all()

    def has(self, session: str) -> bool:
        """Whether a session is open here."""
        with self._lock:
            return session in self._store

    def close(self) -> None:
        """Finishes the steps that are being computed, refuses the others, and ends the thread and all sessions."""
        with self._lock:
            self._closing = True
            for line in self._store:
                self._failures += [(step, Unavailable(_STOPPING)) for step in line.drop_all()]
            self._changed.notify_all()
        self._thread.join()
        self._turns.close()
        with self._lock:
            self._store.clear()

    def _check_room(self, line: Line, step: VideoStep) -> None:
        """Under the lock."""
        line.check(step.request, step.brought_bytes, self._limits.session_bytes, self._limits.waiting)
        if step.brought_bytes and not self._store.has_room(step.brought_bytes, line):
            raise QueueFull("the videos that are being tracked have used up their memory: try again in a moment")

    def _open(self, step: VideoStep) -> Line:
        """The session that a step opens. One of this name is only replaced by a state. Under the lock."""
        request = step.request
        known = self._store.find(request.session)
        if known is not None and step.video.state is None:
            known.check(request, 0, self._limits.session_bytes, self._limits.waiting)
            raise InvalidInput(f"the video session {request.session[:40]!r} is open already: choose another name")
        if known is not None:
            replaced = Cancelled("the session was opened again with a state: this step belongs to the old one")
            self._failures += [(old, replaced) for old in known.drop_all()]
            self._store.close(known)
        return self._store.open(request.session, request.step)

    # -- the thread ------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._lock:
                turns = self._next_turns()
                while not (turns or self._failures or self._closing or self._store.freed >= _MUCH_FREED):
                    self._changed.wait(self._patience())
                    turns = self._next_turns()
                failures, self._failures = self._failures, []
                has_freed = self._store.freed >= _MUCH_FREED
                if has_freed:
                    self._store.freed = 0
                elif not (turns or failures):
                    return
            for step, error in failures:
                self._responder.fail(step.job, error)
            if turns:
                self._turns.take(turns)
                with self._lock:
                    self._report()
            del turns, failures  # an idle thread keeps no frame alive
            if has_freed:  # in many small pieces, which the C library would keep
                return_freed_memory()

    def _next_turns(self) -> list[Turn]:
        """The steps to compute now, and frames to the encoder. Under the lock."""
        busy = self._store.busy
        for line in busy:
            end = line.gap_ends(self._limits.gap_seconds)
            if end is not None and end <= time.perf_counter():
                self._failures += line.give_up_gap(self._limits.gap_seconds)
        if not self._closing:
            self._frames.feed(busy)
        return [(line, step) for line in busy if (step := line.begin()) is not None]

    def _patience(self) -> float | None:
        """Seconds until something has to be done by itself; None if nothing has. Under the lock."""
        ends = [self._store.expire(), *(line.gap_ends(self._limits.gap_seconds) for line in self._store.busy)]
        if self._store.expired > self._expired:
            self._report()
        if self._store.freed >= _MUCH_FREED:
            return 0.0
        known = [end for end in ends if end is not None]
        return max(0.0, min(known) - time.perf_counter()) if known else None

    def done(self, line: Line, step: VideoStep) -> None:
        with self._lock:
            line.done()
            if step.request.do is Do.CLOSE:
                self._failures += [(left, Cancelled("the session was closed")) for left in line.drop_all()]
                self._store.close(line)

    def failed(self, line: Line, step: VideoStep) -> None:
        with self._lock:
            self._failures += line.failed()
            if line.session is None or step.request.do is Do.OPEN:
                self._store.close(line)

    def has_room(self, more: int) -> bool:
        with self._lock:
            return self._store.has_room(more)

    def _report(self) -> None:
        """Under the lock."""
        expired, self._expired = self._store.expired - self._expired, self._store.expired
        self._metrics.count("video_expired", expired)
        self._metrics.set("video_sessions", len(self._store))
        self._metrics.set("video_bytes", self._store.bytes)
