"""One open session and its steps, which wait here until it is their turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.video.outcome import VideoJob
from triton_sam.backend.video.track_session import TrackSession
from triton_sam.core.images import EncodedImage
from triton_sam.core.video.request import VideoRequest
from triton_sam.engines.base import Embedding
from triton_sam.errors import InvalidInput, QueueFull, TritonSamError, Unavailable

#: Steps of which it is known how they were named.
_NAMES_KEPT = 64
#: How long steps wait for one that has failed.
_FAILED_SECONDS = 1.0
_FAILED = "{} before it failed: send that one again first"
_CANCELLED = "{} before it was cancelled: send that one again first"


@dataclass(eq=False, slots=True)
class VideoStep:
    """One request of a session.

    Attributes:
        video: the job's own.
        image: the frame; None for steps without one, and when it is encoded.
        embedding: the encoded frame.
        failure: why it cannot be done; it is answered when it is its turn.
        begun: whether its frame was given to the encoder.
        gone: whether nobody waits for it any more.
        brought_bytes: of the frame's file, or of a state.
    """

    job: SegmentJob
    video: VideoJob
    image: EncodedImage | None = None
    embedding: Embedding | None = None
    failure: TritonSamError | None = None
    begun: bool = False
    gone: bool = False
    brought_bytes: int = 0

    @property
    def request(self) -> VideoRequest:
        return self.video.request

    @property
    def is_ready(self) -> bool:
        """Whether it can be computed, or answered with its failure."""
        return self.failure is not None or self.image is None or self.embedding is not None


class Line:
    """See the module. Not thread-safe; the scheduler's lock guards it, except ``session``, which is the runner's."""

    def __init__(self, name: str, first: int) -> None:
        """
        Args:
            first: number of the step that opens it.
        """
        self.name = name
        self.next = first
        """Number of the step that comes next, or is being computed."""
        self.session: TrackSession | None = None
        """None until it was opened."""
        self.running: VideoStep | None = None
        self.used = time.perf_counter()
        """When something was last done for it."""
        self.memory_bytes = 0
        """Of its memories."""
        self.waiting_bytes = 0
        """Of the frames and states that wait."""
        self._waiting: dict[int, VideoStep] = {}
        self._names: dict[int, str] = {}
        self._progressed = self.used
        self._failed: str | None = None
        """The name of the next step, if it was tried already."""
        self._cancelled: VideoRequest | None = None
        """The first step that was cancelled and has not come again."""

    @property
    def is_idle(self) -> bool:
        return self.running is None and not self._waiting

    @property
    def bytes(self) -> int:
        return self.memory_bytes + self.waiting_bytes

    def steps(self) -> Iterator[VideoStep]:
        """The step that is computed, and those that wait."""
        if self.running is not None:
            yield self.running
        yield from self._waiting.values()

    def check(self, request: VideoRequest, more_bytes: int, most_bytes: int, most_waiting: int) -> None:
        """Raises InvalidInput for a step that was taken already, QueueFull if no further one may wait."""
        number = request.step
        if number in self._waiting:
            raise InvalidInput(f"{self._waiting[number].request.named} is waiting already: send each step once")
        if number < self.next or (self.running is not None and number == self.next):
            taken = self._names.get(number, f"step {number}")
            raise InvalidInput(f"{taken} was taken already: the next step of the session is step {self._expected}")
        if len(self._waiting) >= most_waiting:
            raise QueueFull(f"{most_waiting} steps of the session are waiting already: wait for an answer first")
        if self._waiting and self.bytes + more_bytes > most_bytes:
            raise QueueFull(
                f"the session has {self.bytes:,} bytes of memories and waiting frames: wait for an answer first"
            )

    def add(self, step: VideoStep) -> None:
        """Takes a step that was checked."""
        if self._cancelled is not None and self._cancelled.step >= step.request.step:
            self._cancelled = None
        self._waiting[step.request.step] = step
        self.waiting_bytes += step.brought_bytes
        self.used = time.perf_counter()

    def upcoming(self, depth: int) -> VideoStep | None:
        """The waiting step at a distance from the next one; None if it, or one before it, is missing."""
        if len(self._waiting) <= depth:
            return None
        first = self._expected
        if any(number not in self._waiting for number in range(first, first + depth + 1)):
            return None
        return self._waiting[first + depth]

    def begin(self) -> VideoStep | None:
        """Takes the next step if it is ready and none is computed."""
        step = self._waiting.get(self.next)
        if self.running is not None or step is None or not step.is_ready:
            return None
        self.running = self._take(self.next)
        return self.running

    def done(self) -> None:
        """The step that was computed counts."""
        assert self.running is not None
        self._names[self.next] = self.running.request.named
        self._names.pop(self.next - _NAMES_KEPT, None)
        self.next += 1
        self.running = self._failed = None
        self.used = self._progressed = time.perf_counter()

    def failed(self) -> list[tuple[VideoStep, TritonSamError]]:
        """The step that was computed does not count. Returns those behind it, with their errors."""
        assert self.running is not None
        self._failed, self.running = self.running.request.named, None
        self.used = self._progressed = time.perf_counter()
        return self._give_up(_FAILED.format(self._failed))

    def drop(self, unwanted: list[VideoStep]) -> list[tuple[VideoStep, TritonSamError]]:
        """Removes waiting steps. Returns those behind the first of them, with their errors."""
        for step in unwanted:
            step.gone = True
            self._take(step.request.step)
        first = min(unwanted, key=lambda step: step.request.step).request
        if self._cancelled is None or first.step < self._cancelled.step:
            self._cancelled = first
        behind = [step for number, step in self._waiting.items() if number > first.step]
        return self._give_up(_CANCELLED.format(first.named), behind)

    def drop_all(self) -> list[VideoStep]:
        """Removes all waiting steps."""
        waiting, self._waiting = list(self._waiting.values()), {}
        self.waiting_bytes = 0
        for step in waiting:
            step.gone = True
        return waiting

    def gap_ends(self, seconds: float) -> float | None:
        """When a step will have waited for a missing one for so long; None if none waits for that."""
        if self.running is not None or not self._waiting or self.next in self._waiting:
            return None
        # A step that has failed, or was cancelled, is sent again at once, or not at all.
        seconds = min(seconds, _FAILED_SECONDS) if self._failed is not None or self._is_cancelled else seconds
        return max(self._progressed, min(step.job.received for step in self._waiting.values())) + seconds

    def give_up_gap(self, seconds: float) -> list[tuple[VideoStep, TritonSamError]]:
        """Removes the steps that wait for a missing one, and returns them with their errors."""
        if self._failed is not None:
            return self._give_up(_FAILED.format(self._failed))
        if self._is_cancelled and self._cancelled is not None:
            return self._give_up(_CANCELLED.format(self._cancelled.named))
        return self._give_up(f"step {self.next} before it did not come within {seconds:g} s: send that one first")

    @property
    def _expected(self) -> int:
        """Number of the next step that is not computed yet."""
        return self.next + (self.running is not None)

    @property
    def _is_cancelled(self) -> bool:
        """Whether the next step was cancelled."""
        return self._cancelled is not None and self._cancelled.step == self.next

    def _take(self, number: int) -> VideoStep:
        step = self._waiting.pop(number)
        self.waiting_bytes -= step.brought_bytes
        return step

    def _give_up(self, why: str, steps: list[VideoStep] | None = None) -> list[tuple[VideoStep, TritonSamError]]:
        given_up = list(self._waiting.values()) if steps is None else steps
        for step in given_up:
            step.gone = True
            self._take(step.request.step)
        return [(step, Unavailable(f"{step.request.named} was not taken, because {why}")) for step in given_up]
