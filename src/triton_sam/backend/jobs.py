"""The scheduler's data types: a job, its reply channel, and the queue limits."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from triton_sam.backend.video.limits import VideoLimits
from triton_sam.core.everything.driver import Progress
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import Prompt
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.errors import TritonSamError

if TYPE_CHECKING:
    from triton_sam.backend.video.outcome import VideoJob


class SegmentReply(Protocol):
    """Sends the response of one request."""

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        """Sends the result. It may raise; :meth:`fail` is called then."""

    def found(self, job: SegmentJob, progress: Progress) -> None:
        """Sends everything that was found, the last step of a run. It may raise; :meth:`fail` is called then."""

    def flush(self) -> None:
        """Sends results that :meth:`succeed` may have held back to send several at once; must not raise."""

    def fail(self, error: TritonSamError) -> None:
        """Sends the error; must not raise."""

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request, as far as the transport knows."""


class Metrics(Protocol):
    """Takes counts and gauges."""

    def count(self, name: str, amount: int = 1) -> None: ...

    def set(self, name: str, value: float) -> None: ...


#: With more objects a response has megabytes.
_MAX_LIGHT_OBJECTS = 4
#: Between two questions to Triton whether the client of a long request is gone: each is a round trip.
ASK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Needs:
    """What a response is made of.

    Attributes:
        logits: the low-resolution logits.
        pixels: the full-size masks, packed by rows.
        embedding: the image's embedding.
        columns: the full-size masks, packed by columns.
    """

    logits: bool = True
    pixels: bool = False
    embedding: bool = False
    columns: bool = False


@dataclass(eq=False, slots=True)
class SegmentJob:
    """One request to a segmenter.

    Attributes:
        prompt: None means "encode only".
        session: requests of one session are served in order and can be cancelled together.
        sequence: the request's number in its session, increasing; None if the client does not count.
        latest_wins: whether it supersedes every older request of its session.
        needs: what its response is made of.
        request_id: the client's id for it, for the log; empty if it has none.
        only_copied: whether its reply only copies the result, and another process formats it.
        run: a client's name for a request for everything, to follow its progress; empty if it does not.
        image: kept for crops of it, which have to be encoded.
        background: whether no person waits for it: it comes after all others.
        video: the step of a video session that it is; then the prompt only has the format of its masks.
        instances: what was found of each concept of the prompt; their masks are the decoded ones, in this order.
        at_once: whether the thread that has its embedding hands it over: it is for work inside this process.
    """

    reply: SegmentReply
    prompt: Prompt | None
    image_key: str
    session: str | None = None
    latest_wins: bool = False
    embedding: Embedding | None = None
    needs: Needs = Needs()
    sequence: int | None = None
    request_id: str = ""
    received: float = field(default_factory=time.perf_counter)
    timings: dict[str, float] = field(default_factory=dict)
    answered: bool = False
    only_copied: bool = False
    run: str = ""
    image: EncodedImage | None = None
    background: bool = False
    video: VideoJob | None = None
    instances: Sequence[Instances] = ()
    at_once: bool = False
    _rows: list[Row] | None = None

    @property
    def turn(self) -> Hashable:
        """The key of its turn in a fair queue: its session, or itself."""
        return self.session if self.session is not None else id(self)

    @property
    def wants_everything(self) -> bool:
        return self.prompt is not None and self.prompt.everything is not None

    @property
    def wants_concepts(self) -> bool:
        return self.prompt is not None and self.prompt.concepts is not None

    @property
    def concept_count(self) -> int:
        """How many concepts it looks for."""
        return 0 if self.prompt is None or self.prompt.concepts is None else len(self.prompt.concepts.concepts)

    @property
    def is_click(self) -> bool:
        """Whether a person waits for its objects."""
        return not (self.wants_everything or self.wants_concepts or self.background)

    @property
    def multimask(self) -> bool:
        return self.prompt is not None and self.prompt.multimask

    def rows(self) -> list[Row]:
        """The decoder's input, one row for each object. Needs the embedding."""
        if self._rows is None:
            assert self.prompt is not None  # otherwise there is nothing to decode
            assert self.embedding is not None
            needs = self.needs
            self._rows = [
                Row(self.embedding, prompt, self.prompt.multimask, needs.logits, needs.pixels, needs.columns)
                for prompt in self.prompt.objects
            ]
        return self._rows

    def concept_rows(self) -> list[ConceptRow]:
        """The detector's input, one row for each concept. Needs the embedding."""
        assert self.prompt is not None
        assert self.prompt.concepts is not None
        assert self.embedding is not None
        asked, needs = self.prompt.concepts, self.needs
        return [
            ConceptRow(
                self.embedding,
                concept,
                asked.score_threshold,
                asked.most,
                needs.logits,
                needs.pixels,
                needs.columns,
            )
            for concept in asked.concepts
        ]

    def is_light(self, decoded: Sequence[Decoded]) -> bool:
        """Whether its response only has to be assembled: nothing to resize, to clean, to compress or to hash."""
        if self.only_copied:
            return not self.needs.embedding
        if self.wants_concepts:  # any number of masks
            return False
        made = all(answer.packed is not None for answer in decoded) or not self.needs.pixels
        few = len(decoded) <= _MAX_LIGHT_OBJECTS and not self.needs.embedding
        is_plain = self.prompt is not None and self.prompt.format in ("bits", "logits") and self.prompt.clean is None
        return made and few and is_plain

    def mark_queue(self, now: float) -> None:
        """Records how long it has waited for the decoder."""
        self.timings["queue"] = (now - self.received) * 1e3 - sum(self.timings.values())

    def mark(self, step: str, started: float) -> None:
        """Records the milliseconds since ``started`` under ``step``."""
        self.timings[step] = (time.perf_counter() - started) * 1e3


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Queue capacities and times. A request beyond a capacity is refused at once."""

    encodes: int = 32
    clicks: int = 512
    seconds: float = 90.0
    """A request that has waited longer is refused: most likely its client has given up."""
    background_seconds: float = 900.0
    """The same for a background request, whose client is patient."""
    patience: float = 0.02
    """Seconds after which a queued request is checked for cancellation."""
    window: float = 0.002
    """Seconds for which the encoder waits for images that are being prepared, so that they join its batch."""
    video: VideoLimits = field(default_factory=VideoLimits)
    """Of video sessions."""
