"""Limits on one request as ASGI middleware: size of the body, pauses while it arrives, and total time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import DeadlineExceeded, RequestTimeout, TooLarge, TritonSamError
from triton_sam.service.admission.paths import VIDEOS, is_video
from triton_sam.service.error_responses import error_response

_LINGER_SECONDS = 5.0
_LINGER_BYTES = 128 * 1024 * 1024
_CLOSE = {"Connection": "close"}


def _listed(value: str) -> set[str]:
    """The values of a header that is a comma-separated list."""
    return {word.strip().lower() for word in value.split(",")}


class RequestLimits:
    """Refuses bodies that are too large or stall, and requests that take too long.

    Errors are raised from ``receive``, so that the usual error handlers see them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        body_seconds: float,
        seconds: float,
        seconds_at: Mapping[str, float] | None = None,
        upload_bytes: int = 0,
    ) -> None:
        """
        Args:
            seconds_at: path -> its own limit instead of ``seconds``.
            upload_bytes: as ``max_bytes``, of a video. Videos have time limits of their own.
        """
        self._app = app
        self._max_bytes = max_bytes
        self._body_seconds = body_seconds
        self._seconds = seconds
        self._seconds_at = dict(seconds_at or {})
        self._upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        max_bytes = self._upload_bytes if scope["path"] == VIDEOS else self._max_bytes
        body = _Body(
            receive,
            send,
            max_bytes,
            self._body_seconds,
            # A client that waits for "100 Continue" has sent no body yet, and reading it would send the 100.
            lingers="expect" not in headers,
            closes=scope["http_version"] == "1.0" or "close" in _listed(headers.get("connection", "")),
        )
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > max_bytes:
            body.declare_too_large()
        seconds = math.inf if is_video(scope["path"]) else self._seconds_at.get(scope["path"], self._seconds)
        with anyio.move_on_after(seconds) as limit:
            await self._app(scope, body.receive, body.send)
        if limit.cancelled_caught and not body.answered:
            late = DeadlineExceeded(f"the request took longer than {seconds:g} s: try again, or send less")
            await error_response(late, _CLOSE)(scope, receive, send)


def too_large(max_bytes: int) -> TooLarge:
    """The error for a body; :mod:`triton_sam.core.images` has the one for an image."""
    return TooLarge(f"the request has more than {max_bytes:,} bytes: send less")


class _Body:
    """Reads one request's body within its limits; after an error, also controls how the response is sent."""

    def __init__(
        self, receive: Receive, send: Send, max_bytes: int, pause: float, *, lingers: bool, closes: bool
    ) -> None:
        """
        Args:
            pause: the longest time without any data, in seconds.
            lingers: whether the rest of the body may be read after the response.
            closes: whether the client asked to close the connection after the response.
        """
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._pause = pause
        self._lingers = lingers
        self._closes = closes
        self._seen = 0
        self._complete = False
        self._error: TritonSamError | None = None
        self._is_declared_too_large = False
        self.answered = False

    def declare_too_large(self) -> None:
        """Makes the first read of the body fail. Not sooner: the token and the rate limit are checked before that."""
        self._is_declared_too_large = True

    def remember(self, error: TritonSamError) -> TritonSamError:
        """Remembers an error: the response then closes the connection."""
        self._error = error
        return error

    async def receive(self) -> Message:
        if self._complete:  # the next message is the disconnect, which has no time limit
            return await self._receive()
        if self._is_declared_too_large and not self.answered:
            raise self.remember(too_large(self._max_bytes))
        with anyio.move_on_after(self._pause) as pause:
            message = await self._receive()
        if pause.cancelled_caught:
            raise self.remember(
                RequestTimeout(f"no data of the request's body arrived for {self._pause:g} s: send it again")
            )
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._seen > self._max_bytes:
                raise self.remember(too_large(self._max_bytes))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered = True
            if self._error is not None:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._must_linger() and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _must_linger(self) -> bool:
        """Whether the body is still arriving on a connection that closes after the response."""
        if self._complete or not self._lingers:
            return False
        return self._closes if self._error is None else isinstance(self._error, TooLarge)

    async def _drain(self) -> None:
        """Reads the rest of the body: closing at once would reset the connection and lose the response."""
        drained = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while drained <= _LINGER_BYTES and not self._complete:
                message = await self._receive()
                drained += len(message.get("body", b""))
                self._complete = message["type"] != "http.request" or not message.get("more_body", False)
