"""What the scheduler handles: one request on its way, its way back, and how many may wait."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triton_sam.core.prompts import Prompt
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.errors import TritonSamError


class Reply(Protocol):
    """The way back to one client."""

    def succeed(self, job: Job, decoded: list[Decoded]) -> None:
        """Sends the answer; may raise, the scheduler then sends :meth:`fail`."""

    def fail(self, error: TritonSamError) -> None:
        """Sends the error; must not raise."""

    def is_cancelled(self) -> bool:
        """Whether the transport knows that nobody waits any more."""


class Metrics(Protocol):
    """Where counts go."""

    def count(self, name: str, amount: int = 1) -> None: ...

    def set(self, name: str, value: float) -> None: ...


#: Whoever asks for more at a time has an answer of megabytes.
_FEW_OBJECTS = 4


@dataclass(frozen=True, slots=True)
class Needs:
    """What an answer is made of.

    Attributes:
        logits: the low-resolution logits.
        pixels: the full-size masks.
        embedding: the image's embedding, which goes out too.
    """

    logits: bool = True
    pixels: bool = False
    embedding: bool = False


@dataclass(eq=False, slots=True)
class Job:
    """One request on its way.

    Attributes:
        prompt: None means "encode only".
        session: requests of one session are served in order and can be cancelled together.
        sequence: the request's number in its session, growing; None where the client does not count.
        latest_wins: supersedes every older request of its session.
        needs: what its answer is made of.
        request_id: the client's name for it, for the log; empty where it has none.
    """

    reply: Reply
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
    _rows: list[Row] | None = None

    @property
    def turn(self) -> Hashable:
        """Whose turn this job takes: its session's, or its own."""
        return self.session if self.session is not None else id(self)

    @property
    def multimask(self) -> bool:
        return self.prompt is not None and self.prompt.multimask

    def rows(self) -> list[Row]:
        """What the decoder gets once the image is encoded: one row for each object."""
        if self._rows is None:
            assert self.prompt is not None  # without one there is nothing to decode
            assert self.embedding is not None
            self._rows = [
                Row(self.embedding, prompt, self.prompt.multimask, self.needs.logits, self.needs.pixels)
                for prompt in self.prompt.objects
            ]
        return self._rows

    def is_light(self, decoded: Sequence[Decoded]) -> bool:
        """Whether its answer only has to be put together: no pixel is to be made, nothing to compress or to hash."""
        made = all(answer.packed is not None for answer in decoded) or not self.needs.pixels
        few = len(decoded) <= _FEW_OBJECTS and not self.needs.embedding
        return made and few and self.prompt is not None and self.prompt.format in ("bits", "logits")

    def mark(self, step: str, started: float) -> None:
        """Notes the milliseconds since ``started`` under ``step``."""
        self.timings[step] = (time.perf_counter() - started) * 1e3


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Capacities: beyond them a request is refused at once."""

    encodes: int = 32
    clicks: int = 512
    seconds: float = 90.0
    """Who has waited longer is refused after all: most likely nobody listens any more."""
    patience: float = 0.02
    """Seconds after which it is asked whether somebody still waits."""
    window: float = 0.002
    """Seconds for which the encoder waits for images that are being prepared, to take them along."""
