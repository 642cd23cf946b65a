"""The steps of a video client's operations, beside those of :mod:`~triton_sam.client.flows`.

Requests are begun and collected separately, because several of them are under way.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from triton_sam.client import flows
from triton_sam.client.flows import ListServed, Pause, ReadParameters
from triton_sam.client.wire import Call
from triton_sam.video.ahead import FramesAhead
from triton_sam.video.clip import Clip

T = TypeVar("T")


class Ticket:
    """Stands for one request that was begun."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a request to one of the client's servers; there is no result yet."""

    ticket: Ticket
    server: int
    call: Call


@dataclass(frozen=True, slots=True)
class Collect:
    """Wait for a request; the result is its outputs by name. ServerUnreachable if nobody knows of it any more.

    Attributes:
        seconds: DeadlineExceeded after so long; None: the connection has its own limit.
    """

    ticket: Ticket
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CheckTriton:
    """Find out that Triton answers; Unsupported if it is the triton-sam service."""


@dataclass(frozen=True, slots=True)
class AskServer:
    """A question to one of the client's servers."""

    server: int
    question: ReadParameters | ListServed | CheckTriton


@dataclass(frozen=True, slots=True)
class NextFrame:
    """The next frame of a walk; None at its end, NOT_YET if there is none without waiting."""

    walk: FramesAhead
    wait: bool


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """One frame of a clip."""

    clip: Clip
    index: int


VideoStep = Start | Collect | AskServer | NextFrame | ReadFrame | Pause
VideoFlow = Generator[VideoStep, Any, T]


def at_server(server: int, flow: flows.Flow[T]) -> VideoFlow[T]:
    """An operation of :class:`~triton_sam.client.core.ClientCore`, whose questions go to one of several servers."""
    try:
        step = next(flow)
        while True:
            assert isinstance(step, ReadParameters | ListServed | Pause)  # the only ones of a look-up
            try:
                result = yield step if isinstance(step, Pause) else AskServer(server, step)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as finished:
        found: T = finished.value
        return found
