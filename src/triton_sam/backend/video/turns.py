"""Computes the steps whose turn it is, of several sessions together, and answers them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from triton_sam.backend.responder import Responder, SafeMetrics, internal_error
from triton_sam.backend.video.limits import VideoLimits
from triton_sam.backend.video.line import Line, VideoStep
from triton_sam.backend.video.stepping import BegunStep, Stepper
from triton_sam.core.video.request import Do
from triton_sam.engines.priority import BESIDE_NICENESS, lower_this_thread
from triton_sam.engines.tracking import Tracked, TrackingEngine, TrackRow
from triton_sam.errors import TritonSamError, Unavailable

Turn = tuple[Line, VideoStep]


class Owner(Protocol):
    """Who keeps the sessions."""

    def done(self, line: Line, step: VideoStep) -> None:
        """A step counts."""

    def failed(self, line: Line, step: VideoStep) -> None:
        """A step does not count; it is answered."""

    def has_room(self, more: int) -> bool:
        """Whether all sessions and so many further bytes fit into their memory."""


class TurnComputer:
    """See the module. Its methods are called by the video thread."""

    def __init__(
        self, engine: TrackingEngine, responder: Responder, metrics: SafeMetrics, limits: VideoLimits, owner: Owner
    ) -> None:
        self._engine = engine
        self._responder = responder
        self._metrics = metrics
        self._owner = owner
        self._stepper = Stepper(engine, limits)
        self._began: float | None = None
        self._progressed = 0.0
        # Of low priority on a CPU, as encodes are: EncodePipeline gives the reason.
        self._low: ThreadPoolExecutor | None = None
        if engine.capacity.on_cpu:
            self._low = ThreadPoolExecutor(1, "track", lambda: lower_this_thread(BESIDE_NICENESS))

    @property
    def seconds(self) -> float:
        """For how long the present steps have made no progress; 0 if there are none. May be asked by any thread."""
        began = self._began
        return 0.0 if began is None else time.perf_counter() - max(began, self._progressed)

    def close(self) -> None:
        """Ends its threads."""
        if self._low is not None:
            self._low.shutdown(wait=True)

    def take(self, turns: list[Turn]) -> None:
        """Computes steps and answers them; each is answered, whatever raises."""
        self._began = time.perf_counter()
        try:
            self._compute(turns)
        except Exception as error:
            for line, step in turns:
                if line.running is step:
                    self._fail(line, step, error)
        finally:
            self._began = None

    def _compute(self, turns: list[Turn]) -> None:
        wanted = {id(job) for job in self._responder.still_wanted([step.job for _, step in turns])}
        begun: list[tuple[Line, VideoStep, BegunStep]] = []
        for line, step in turns:
            if id(step.job) not in wanted:  # it is answered
                self._fail(line, step, None)
                continue
            try:
                begun.append((line, step, self._begin(line, step)))
            except Exception as error:
                self._fail(line, step, error)
        try:
            results = self._track([row for _, _, one in begun for row in one.rows])
        except Exception as error:
            if len(begun) == 1:
                self._fail(*begun[0][:2], error)
            else:  # one may be the cause
                for line, step, one in begun:
                    self._alone(line, step, one)
            return
        for line, step, one in begun:
            mine, results = results[: len(one.rows)], results[len(one.rows) :]
            self._finish(line, step, one, mine)

    def _begin(self, line: Line, step: VideoStep) -> BegunStep:
        if step.failure is not None:
            raise step.failure
        step.job.mark_queue(time.perf_counter())
        restored = step.video.state
        grows = step.request.do in (Do.PROMPT, Do.TRACK) or restored is not None
        if grows and not self._owner.has_room(len(restored or b"")):
            raise Unavailable(
                "the videos that are being tracked have used up their memory: try again later, "
                "or raise TRITON_SAM_VIDEO_BYTES"
            )
        return self._stepper.begin(line, step)

    def _track(self, rows: list[TrackRow]) -> list[Tracked]:
        if not rows:
            return []
        track, most = self._engine.track, self._engine.track_rows
        results: list[Tracked] = []
        for start in range(0, len(rows), most):
            batch = rows[start : start + most]
            results += track(batch) if self._low is None else self._low.submit(track, batch).result()
            self._progressed = time.perf_counter()
        self._metrics.count("video_rows", len(rows))
        return results

    def _alone(self, line: Line, step: VideoStep, one: BegunStep) -> None:
        try:
            results = self._track(one.rows)
        except Exception as error:
            self._fail(line, step, error)
        else:
            self._finish(line, step, one, results)

    def _finish(self, line: Line, step: VideoStep, one: BegunStep, results: list[Tracked]) -> None:
        """Lets a step count, and answers it."""
        assert self._began is not None
        try:
            decoded, step.video.outcome = one.finish(results)
        except Exception as error:
            self._fail(line, step, error)
            return
        job = step.job
        job.embedding = step.embedding
        job.mark("track", self._began)
        self._metrics.count("video_frames", int(step.request.do is Do.TRACK))
        self._owner.done(line, step)
        self._responder.finish_later(job, decoded)

    def _fail(self, line: Line, step: VideoStep, error: Exception | None) -> None:
        """Answers a step that does not count.

        Args:
            error: None if it is answered.
        """
        # First, because who is told may send the same step again at once.
        self._owner.failed(line, step)
        if error is not None:
            if not isinstance(error, TritonSamError):
                error = internal_error("tracking", error, [step.job])
            self._responder.fail(step.job, error)
