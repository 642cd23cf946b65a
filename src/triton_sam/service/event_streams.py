"""Server-sent events, and other responses that begin before they are complete."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triton_sam.errors import DeadlineExceeded, InternalError, TritonSamError
from triton_sam.service.error_responses import public_error

log = logging.getLogger(__name__)

EVENTS = "text/event-stream"
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would buffer the events
}
Lines = AsyncGenerator[bytes, None]


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """The time limit for everything before the model's work, which has another one."""
    with anyio.move_on_after(seconds) as limit:
        yield
    if limit.cancelled_caught:
        raise DeadlineExceeded(f"the request was not complete after {seconds:g} s: try again, or send less")


def event_of(document: bytes, name: str = "") -> bytes:
    """One event.

    Args:
        document: JSON without line breaks.
        name: of the event; empty for none.
    """
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, document)


class EventStream(Response):
    """A response of events that closes its generators. An error after its start becomes the last event.

    Starlette's StreamingResponse would watch for the disconnect a second time, and leave the generator to the garbage
    collector.
    """

    def __init__(
        self,
        events: Lines,
        source: AsyncGenerator[Any, None],
        error_event: Callable[[TritonSamError], bytes],
        media_type: str = f"{EVENTS}; charset=utf-8",
    ) -> None:
        """
        Args:
            source: of the events. Closed here too: closing a generator that never started does nothing.
            error_event: the event for an error.
            media_type: of a stream of something else than events.
        """
        self.status_code = 200
        self.background = None
        self._events = events
        self._source = source
        self._error_event = error_event
        self.init_headers({"Content-Type": media_type, **_HEADERS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._source), contextlib.aclosing(self._with_error()) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_error(self) -> Lines:
        async with contextlib.aclosing(self._events) as events:
            try:
                async for event in events:
                    yield event
            except TritonSamError as error:
                yield self._error_event(public_error(error))
            except Exception:
                log.exception("unexpected exception in a stream of events")
                yield self._error_event(InternalError("the service failed on this request: see its log"))
