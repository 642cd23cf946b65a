"""Limits on one request and on many, as plain ASGI: size and pace of the body, time in all, requests at a time."""

from __future__ import annotations

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import DeadlineExceeded, QueueFull, TooLarge, TritonSamError
from triton_sam.service.faults import RequestTimeout, error_response

#: Must be answered above all when the service is busy.
_ALWAYS_ADMITTED = frozenset({"/health", "/metrics"})
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 128 * 1024 * 1024
_CLOSE = {"Connection": "close"}


class Admission:
    """Refuses a request while enough others are being worked on."""

    def __init__(self, app: ASGIApp, *, at_a_time: int) -> None:
        self._app = app
        self._at_a_time = at_a_time
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ADMITTED:
            await self._app(scope, receive, send)
            return
        if self._inside >= self._at_a_time:
            refusal = QueueFull(f"{self._at_a_time} requests are being worked on already: try again in a moment")
            await error_response(refusal)(scope, receive, send)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1


class RequestLimits:
    """Refuses bodies that are too large or stop coming, and requests that take too long.

    A fault is raised out of ``receive``, so that it comes to the error handlers like every other one.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, body_seconds: float, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._body_seconds = body_seconds
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(receive, send, self._max_bytes, self._body_seconds, lingers="expect" not in headers)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            await error_response(body.note(too_large(self._max_bytes)))(scope, receive, body.send)
            return
        with anyio.move_on_after(self._seconds) as limit:
            await self._app(scope, body.receive, body.send)
        if limit.cancelled_caught and not body.answered:
            late = DeadlineExceeded(f"the request took longer than {self._seconds:g} s: try again, or send less")
            await error_response(late, _CLOSE)(scope, receive, send)


def too_large(max_bytes: int) -> TooLarge:
    """For a body; that of an image is told by :mod:`triton_sam.images`."""
    return TooLarge(f"the request has more than {max_bytes:,} bytes: send less")


class _Body:
    """One request's body on its way in, and after a fault its answer on the way out."""

    def __init__(self, receive: Receive, send: Send, max_bytes: int, pause: float, *, lingers: bool) -> None:
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._pause = pause
        # Whoever expects a 100 first has sent no body yet, and is not to be invited to.
        self._lingers = lingers
        self._seen = 0
        self._complete = False
        self._fault: TritonSamError | None = None
        self.answered = False

    def note(self, fault: TritonSamError) -> TritonSamError:
        """From here on the answer closes the connection."""
        self._fault = fault
        return fault

    async def receive(self) -> Message:
        if self._complete:  # what comes now is the hanging up, and that may take as long as it likes
            return await self._receive()
        with anyio.move_on_after(self._pause) as pause:
            message = await self._receive()
        if pause.cancelled_caught:
            raise self.note(RequestTimeout(f"the request's body stopped coming for {self._pause:g} s: send it again"))
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._seen > self._max_bytes:
                raise self.note(too_large(self._max_bytes))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered = True
            if self._fault is not None:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._fault is not None and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            if isinstance(self._fault, TooLarge) and self._lingers:
                await self._swallow()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _swallow(self) -> None:
        """Takes in what is still being sent: closing at once would reset the connection, and the answer be lost."""
        swallowed = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while swallowed <= _LINGER_BYTES and not self._complete:
                message = await self._receive()
                swallowed += len(message.get("body", b""))
                self._complete = message["type"] != "http.request" or not message.get("more_body", False)
