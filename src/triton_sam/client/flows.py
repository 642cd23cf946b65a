"""The steps of a client operation, and the loops that perform them.

An operation such as a click is a generator, as httpx's authentication flows are. It yields a step, receives the step's
result or exception, and returns the operation's result. The generator decides, and does no I/O itself: a blocking and
an asyncio client perform the same steps, each with its own transport.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from triton_sam.client.wire import Call, OnMessage

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Infer:
    """Send an inference request; the result is its outputs by name.

    Attributes:
        on_message: the request is followed, and this called with each message; the last one is the result.
    """

    call: Call
    on_message: OnMessage | None = None


@dataclass(frozen=True, slots=True)
class ReadParameters:
    """Read the parameters of a model's config; the result is a mapping of texts. NotFound if it is not served."""

    model: str


@dataclass(frozen=True, slots=True)
class ListServed:
    """Ask which segmenters are served; the result is a list of their names, empty if the server does not say."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EncodeAgain:
    """Encode the operation's image again, because its embedding has expired; the result is its new key."""

    expired_key: str


Step = Infer | ReadParameters | ListServed | Pause | EncodeAgain
Flow = Generator[Step, Any, T]


def run(flow: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Performs the steps of an operation, blocking; returns its result."""
    try:
        step = next(flow)
        while True:
            try:
                result = perform(step)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as finished:
        returned: T = finished.value
        return returned


async def run_async(flow: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """As :func:`run`, with steps that are awaited."""
    try:
        step = next(flow)
        while True:
            try:
                result = await perform(step)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as finished:
        returned: T = finished.value
        return returned
