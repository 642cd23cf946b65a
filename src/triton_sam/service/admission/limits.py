"""Limits on one request and on many, as plain ASGI: size and pace of the body, time in all, requests at a time."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import DeadlineExceeded, QueueFull, RequestTimeout, TooLarge, TritonSamError
from triton_sam.service.admission.access import METRICS, is_page
from triton_sam.service.admission.places import Places
from triton_sam.service.faults import error_response

#: Must be answered above all when the service is busy: whoever adds servers then looks at these.
_ALWAYS_ADMITTED = frozenset({"/health", METRICS, f"/v2{METRICS}"})
#: A body so small is never refused for what others send: clicks go on while somebody fills the service with images.
_FREE_BYTES = 64 * 1024
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 128 * 1024 * 1024
_CLOSE = {"Connection": "close"}


class Admission:
    """Refuses a request while enough others are being worked on.

    Work begins when a body has come completely: whoever sends slowly keeps nobody else out. Of bodies that are still
    coming more are allowed, but not any number, and not any number of bytes. Who finds every place taken is told so
    before the body is looked at: a refusal must cost little, or refusing is all that gets done.
    """

    def __init__(self, app: ASGIApp, *, places: Places) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nor do the page's files wait for models, or count as work: opening it would take a dozen places at once.
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ADMITTED or is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        visit = _Visit(self._places, scope["path"], receive)
        try:
            visit.arrive(has_body=_has_body(Headers(scope=scope)))
        except QueueFull as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        try:
            await self._app(scope, visit.receive, send)
        finally:
            visit.leave()


class _Visit:
    """One request on its way through :class:`Admission`."""

    def __init__(self, places: Places, path: str, receive: Receive) -> None:
        self._places = places
        self._path = path
        self._receive = receive
        self._arriving = self._working = False
        self._seen = self._held = 0

    def arrive(self, *, has_body: bool) -> None:
        self._places.check(self._path)
        self._places.count(self._path, arriving=has_body, working=not has_body)
        self._arriving, self._working = has_body, not has_body

    def leave(self) -> None:
        self._places.let_go(self._held)
        self._places.count(self._path, arriving=-self._arriving, working=-self._working)

    async def receive(self) -> Message:
        """A refusal is raised here, so that it comes to the error handlers like every other one."""
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > _FREE_BYTES:
            self._places.hold(self._seen - self._held)
            self._held = self._seen
        complete = message["type"] == "http.request" and not message.get("more_body", False)
        if complete and self._arriving:
            self._places.count(self._path, working=1, arriving=-1)
            self._arriving, self._working = False, True
        return message


def _listed(value: str) -> set[str]:
    """The words of a header that lists some."""
    return {word.strip().lower() for word in value.split(",")}


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0 ") != ""


class RequestLimits:
    """Refuses bodies that are too large or stop coming, and requests that take too long.

    A fault is raised out of ``receive``, so that it comes to the error handlers like every other one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        body_seconds: float,
        seconds: float,
        seconds_at: Mapping[str, float] | None = None,
    ) -> None:
        """
        Args:
            seconds_at: path -> its own limit in place of ``seconds``.
        """
        self._app = app
        self._max_bytes = max_bytes
        self._body_seconds = body_seconds
        self._seconds = seconds
        self._seconds_at = dict(seconds_at or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(
            receive,
            send,
            self._max_bytes,
            self._body_seconds,
            # Whoever expects a 100 first has sent no body yet, and is not to be invited to.
            lingers="expect" not in headers,
            closes=scope["http_version"] == "1.0" or "close" in _listed(headers.get("connection", "")),
        )
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            body.declare_too_large()
        seconds = self._seconds_at.get(scope["path"], self._seconds)
        with anyio.move_on_after(seconds) as limit:
            await self._app(scope, body.receive, body.send)
        if limit.cancelled_caught and not body.answered:
            late = DeadlineExceeded(f"the request took longer than {seconds:g} s: try again, or send less")
            await error_response(late, _CLOSE)(scope, receive, send)


def too_large(max_bytes: int) -> TooLarge:
    """For a body; that of an image is told by :mod:`triton_sam.core.images`."""
    return TooLarge(f"the request has more than {max_bytes:,} bytes: send less")


class _Body:
    """One request's body on its way in, and after a fault its answer on the way out."""

    def __init__(
        self, receive: Receive, send: Send, max_bytes: int, pause: float, *, lingers: bool, closes: bool
    ) -> None:
        """
        Args:
            lingers: whether what is still being sent may be taken in after the answer.
            closes: whether the connection ends with the answer, as the caller wished.
        """
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._pause = pause
        self._lingers = lingers
        self._closes = closes
        self._seen = 0
        self._complete = False
        self._fault: TritonSamError | None = None
        self._is_declared_too_large = False
        self.answered = False

    def declare_too_large(self) -> None:
        """Whoever asks for the body is told so, and nothing of it is read. Tokens and rates come before that."""
        self._is_declared_too_large = True

    def note(self, fault: TritonSamError) -> TritonSamError:
        """From here on the answer closes the connection."""
        self._fault = fault
        return fault

    async def receive(self) -> Message:
        if self._complete:  # what comes now is the hanging up, and that may take as long as it likes
            return await self._receive()
        if self._is_declared_too_large and not self.answered:
            raise self.note(too_large(self._max_bytes))
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
        elif self._must_linger() and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._swallow()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _must_linger(self) -> bool:
        """Whether a body is still coming in on a connection that the answer's end closes."""
        if self._complete or not self._lingers:
            return False
        return self._closes if self._fault is None else isinstance(self._fault, TooLarge)

    async def _swallow(self) -> None:
        """Takes in what is still being sent: closing at once would reset the connection, and the answer be lost."""
        swallowed = 0
        with anyio.move_on_after(_LINGER_SECONDS):
            while swallowed <= _LINGER_BYTES and not self._complete:
                message = await self._receive()
                swallowed += len(message.get("body", b""))
                self._complete = message["type"] != "http.request" or not message.get("more_body", False)
