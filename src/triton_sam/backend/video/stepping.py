"""What each step of a session does: from its request to rows for the engine, and from their results to an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triton_sam.backend.video.limits import VideoLimits
from triton_sam.backend.video.line import Line, VideoStep
from triton_sam.backend.video.outcome import VideoOutcome
from triton_sam.backend.video.session_state import note_state, session_of
from triton_sam.backend.video.track_session import Forms, FrameMasks, Step, TrackSession
from triton_sam.core.geometry import Frame
from triton_sam.core.video.request import Do, VideoRequest
from triton_sam.core.video.state_bytes import StateLimits, unpack_state
from triton_sam.engines.base import Decoded
from triton_sam.engines.tracking import Tracked, TrackingEngine, TrackRow
from triton_sam.errors import InternalError, InvalidInput, TooLarge, TooManyObjects


@dataclass(frozen=True, slots=True, eq=False)
class BegunStep:
    """A step whose rows are known.

    Attributes:
        finish: takes one result for each row; returns one mask for each object, and the rest of the response.
    """

    rows: list[TrackRow]
    finish: Callable[[Sequence[Tracked]], tuple[list[Decoded], VideoOutcome]]


class Stepper:
    """Does the steps of all sessions; on the video thread only."""

    def __init__(self, engine: TrackingEngine, limits: VideoLimits) -> None:
        traits = engine.spec.memory
        assert traits is not None  # engines that track have models with a memory
        self._engine = engine
        self._traits = traits
        self._limits = limits

    def begin(self, line: Line, step: VideoStep) -> BegunStep:
        """Checks a step and finds its rows. InvalidInput or TooLarge if it cannot be done."""
        request = step.request
        if request.do is Do.OPEN:
            line.session = self._open(step)
        session = line.session
        if session is None:
            raise InvalidInput(f"{request.named} came before the session was opened: open it first")
        if request.do in (Do.PROMPT, Do.TRACK):
            self._check_room(line, session, step)
        if request.do is Do.CLEAR and session.size is not None:
            self._check_answer(len(session.objects), session.size, request)
        begun = self._act(session, step)

        def finish(results: Sequence[Tracked]) -> tuple[list[Decoded], VideoOutcome]:
            if not all(np.isfinite([one.appearance, *one.decoded.scores]).all() for one in results):
                raise InternalError(f"the model's result for {request.named} is not finite: open the session anew")
            masks = begun.finish(results)
            self._measure(line, session)
            return [_slim(mask.decoded, step) for mask in masks.masks], self._outcome(session, step, masks)

        return BegunStep(begun.rows, finish)

    def _measure(self, line: Line, session: TrackSession) -> None:
        """Notes what a session's memories take; it keeps less history if they are too large."""
        each, most = self._engine.memory_bytes, self._limits.session_bytes
        line.memory_bytes = session.bytes(each)
        if line.memory_bytes > most:
            session.shrink(most, each)
            line.memory_bytes = session.bytes(each)

    def _open(self, step: VideoStep) -> TrackSession:
        request, limits, engine = step.request, self._limits, self._engine
        self._check_size(request)
        if step.video.state is None:
            session = TrackSession(self._traits, limits.session, request.length)
            session.size = request.size
            return session
        side = engine.spec.decoder.mask_side
        wanted = StateLimits(
            engine.spec.id,
            engine.memory_shape(),
            (side, side),
            engine.memory_bytes,
            limits.session_bytes,
            limits.session.objects,
            limits.session.conditioning,
            limits.pixels,
        )
        state = unpack_state(step.video.state, wanted)
        step.video.state = None  # it may be large, and is not needed any more
        session = session_of(state, self._traits, limits.session, engine)
        if session.size is not None and request.size not in (None, session.size):
            raise InvalidInput(
                f"video_state has frames of {session.size[0]} x {session.size[1]} pixels: open it with that size"
            )
        session.size = session.size or request.size
        return session

    def _check_size(self, request: VideoRequest) -> None:
        if request.size is not None and request.size[0] * request.size[1] > self._limits.pixels:
            raise TooLarge(
                f"frames of {request.size[0]} x {request.size[1]} pixels are too large: {self._limits.pixels:,} pixels "
                "are allowed"
            )

    def _check_room(self, line: Line, session: TrackSession, step: VideoStep) -> None:
        request, limits = step.request, self._limits
        assert step.embedding is not None
        frame = step.embedding.frame
        request.check_prompt(frame.width, frame.height)
        if line.memory_bytes > limits.session_bytes:
            raise TooLarge(
                f"the objects of this video need {line.memory_bytes:,} bytes of memory and {limits.session_bytes:,} "
                "are allowed: remove some, or raise TRITON_SAM_VIDEO_SESSION_BYTES"
            )
        is_new = request.do is Do.PROMPT and request.object not in session.objects
        count = len(session.objects) + is_new
        self._check_answer(count, (frame.width, frame.height), request, is_further=is_new and count > 1)

    def _check_answer(
        self, count: int, size: tuple[int, int], request: VideoRequest, *, is_further: bool = False
    ) -> None:
        if request.format != "logits" and count * size[0] * size[1] > self._limits.answer_pixels:
            raise (TooManyObjects if is_further else TooLarge)(
                f"{count} masks of {size[0]} x {size[1]} pixels are too much for one response: "
                f"{self._limits.answer_pixels:,} pixels in all are allowed, so request logits, or raise "
                "TRITON_SAM_MAX_ANSWER_PIXELS"
            )

    def _act(self, session: TrackSession, step: VideoStep) -> Step:
        request, needs = step.request, step.job.needs
        forms = Forms(needs.pixels, needs.columns)
        if request.do in (Do.PROMPT, Do.TRACK):
            assert step.embedding is not None
            assert request.frame is not None
            if request.do is Do.TRACK:
                return session.track(request.frame, step.embedding, reverse=request.reverse, forms=forms)
            assert request.object is not None
            mask = None if request.mask is None else request.mask.pixels()
            return session.prompt(request.frame, request.object, step.embedding, request.prompt, mask, forms)
        masks = FrameMasks()
        if request.do is Do.CLEAR:
            assert request.frame is not None
            assert request.object is not None
            masks = session.clear(request.frame, request.object)
        elif request.do is Do.REMOVE:
            assert request.object is not None
            session.remove(request.object)
        elif request.do is Do.RESET:
            session.reset()
        return Step([], lambda results: masks)

    def _outcome(self, session: TrackSession, step: VideoStep, masks: FrameMasks) -> VideoOutcome:
        spec, geometry = self._engine.spec, None
        if session.size is not None:
            geometry = Frame(*session.size, spec.side, spec.resize)
        return VideoOutcome(
            geometry,
            tuple(mask.name for mask in masks.masks),
            tuple(float(mask.appearance) for mask in masks.masks),
            tuple(session.objects),
            masks.forgotten,
            masks.dropped,
            note_state(session, self._engine, self._traits) if step.request.state else None,
        )


def _slim(decoded: Decoded, step: VideoStep) -> Decoded:
    """Without logits that the response does not need."""
    made = decoded.packed is not None or decoded.columns is not None
    return replace(decoded, logits=None) if made and not step.job.needs.logits else decoded
