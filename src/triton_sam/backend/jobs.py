"""What the scheduler handles: one request on its way, its way back, and how many may wait."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from triton_sam.engines.base import Decoded, Embedding
from triton_sam.errors import TritonSamError
from triton_sam.prompts import Prompt


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


@dataclass(eq=False, slots=True)
class Job:
    """One request on its way.

    Attributes:
        prompt: None means "encode only".
        session: requests of one session are served in order and can be cancelled together.
        sequence: the request's number in its session, growing; None where the client does not count.
        latest_wins: supersedes every older request of its session.
    """

    reply: Reply
    prompt: Prompt | None
    image_key: str
    session: str | None = None
    latest_wins: bool = False
    embedding: Embedding | None = None
    sequence: int | None = None
    received: float = field(default_factory=time.perf_counter)
    timings: dict[str, float] = field(default_factory=dict)
    answered: bool = False

    @property
    def turn(self) -> Hashable:
        """Whose turn this job takes: its session's, or its own."""
        return self.session if self.session is not None else id(self)

    def mark(self, step: str, started: float) -> None:
        """Notes the milliseconds since ``started`` under ``step``."""
        self.timings[step] = (time.perf_counter() - started) * 1e3


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Capacities: beyond them a request is refused at once."""

    encodes: int = 32
    clicks: int = 512
    batch: int = 8
    seconds: float = 90.0
    """Who has waited longer is refused after all: most likely nobody listens any more."""
