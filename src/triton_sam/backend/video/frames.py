"""Encodes the frames of videos, as images: those ahead while earlier ones are tracked."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.encodes import EncodePipeline, EncodeTask
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.responder import Responder
from triton_sam.backend.video.line import Line, VideoStep
from triton_sam.core.everything.driver import Progress
from triton_sam.engines.base import Capacity, Decoded
from triton_sam.errors import InternalError, InvalidInput, TritonSamError

_TIMED = ("image", "encode")


class FrameEncoder:
    """Gives frames to the encoder. Its methods are called under the scheduler's lock."""

    def __init__(
        self,
        capacity: Capacity,
        cache: EmbeddingCache,
        encodes: EncodePipeline,
        responder: Responder,
        changed: threading.Condition,
    ) -> None:
        """
        Args:
            changed: the scheduler's lock; notified when a frame is encoded, or cannot be.
        """
        self._cache = cache
        self._encodes = encodes
        self._responder = responder
        self._changed = changed
        #: Frames that are queued, being encoded, or encoded and not tracked yet; of all videos and of one.
        self._most = 2 * capacity.image_batches[-1]
        self._depth = min(4, self._most)

    def feed(self, lines: Sequence[Line]) -> None:
        """Begins to encode frames whose turn comes soon: first the next one of each video, then the one after it."""
        room = self._most - sum(step.begun and step.image is not None for line in lines for step in line.steps())
        for depth in range(self._depth):
            for line in lines:
                step = line.upcoming(depth)
                if room <= 0:
                    return
                if step is not None and step.image is not None and step.failure is None and not step.begun:
                    room -= 1
                    self._begin(line, step)

    def _begin(self, line: Line, step: VideoStep) -> None:
        assert step.image is not None
        step.begun = True
        request, session = step.request, line.session
        try:
            if session is not None and request.frame is not None:
                session.check_frame(request.frame, step.image.size)
        except TritonSamError as error:
            step.failure = error
            self._changed.notify_all()
            return
        key = step.job.image_key
        step.embedding = self._cache.get(key, background=True)
        if step.embedding is not None:
            self._changed.notify_all()
            return
        # Nobody looks at a frame for long: it is in the background for the cache and for batches, and in turn with
        # people's images in the queue.
        job = SegmentJob(_FrameReply(step, self._changed), None, key, background=True, at_once=True)
        job.request_id = step.job.request_id
        self._responder.admit(job)
        task = self._encodes.tasks.get(key)
        if task is not None:
            self._encodes.join_task(task, job)
        else:
            self._encodes.add(EncodeTask(key, step.image, [job], among_people=True), line.name)


class _FrameReply:
    """Hands the embedding of a frame to its step."""

    def __init__(self, step: VideoStep, changed: threading.Condition) -> None:
        self._step = step
        self._changed = changed

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        with self._changed:
            self._step.embedding = job.embedding
            self._step.job.timings |= {step: spent for step, spent in job.timings.items() if step in _TIMED}
            self._changed.notify_all()

    def found(self, job: SegmentJob, progress: Progress) -> None:
        raise InternalError("a frame is only encoded")

    def flush(self) -> None:
        """Nothing is held back."""

    def fail(self, error: TritonSamError) -> None:
        if isinstance(error, InvalidInput):
            error = type(error)(f"frame {self._step.request.frame} cannot be used: {error}")
        with self._changed:
            self._step.failure = error
            self._changed.notify_all()

    def is_cancelled(self) -> bool:
        return self._step.gone
