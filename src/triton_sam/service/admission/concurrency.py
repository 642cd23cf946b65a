"""Concurrency limit as ASGI middleware: how many requests are in progress, and how many bodies are in memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import QueueFull
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.admission.paths import METRICS, VIDEOS, group_of, is_page
from triton_sam.service.error_responses import error_response

#: Needed most when the service is busy: autoscalers read these.
_ALWAYS_ADMITTED = frozenset({"/health", METRICS, f"/v2{METRICS}"})
#: Such small bodies are not counted, so clicks continue while other requests fill the memory with images.
_FREE_BYTES = 64 * 1024


class ConcurrencyMiddleware:
    """Refuses a request while too many others are in progress.

    A request is in progress when its body is complete, so a slow sender takes no slot from others. More bodies may be
    arriving at a time, within limits of their number and their bytes. If every slot is taken, the refusal comes before
    the body is read, so that refusals stay cheap.
    """

    def __init__(self, app: ASGIApp, *, capacity: ServiceCapacity) -> None:
        self._app = app
        self._capacity = capacity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The page's files need no model and no slot: loading the page would take a dozen slots at once.
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ADMITTED or is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = _CountedRequest(self._capacity, scope, receive)
        try:
            request.arrive(has_body=_has_body(Headers(scope=scope)))
        except QueueFull as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        try:
            await self._app(scope, request.receive, send)
        finally:
            request.leave()


class _CountedRequest:
    """One request's share of the capacity."""

    def __init__(self, capacity: ServiceCapacity, scope: Scope, receive: Receive) -> None:
        self._capacity = capacity
        self._path = group_of(scope["method"], scope["path"])
        self._goes_to_disk = scope["path"] == VIDEOS
        self._receive = receive
        self._arriving = self._working = False
        self._seen = self._held = 0

    def arrive(self, *, has_body: bool) -> None:
        self._capacity.check(self._path)
        self._capacity.add(self._path, arriving=has_body, working=not has_body)
        self._arriving, self._working = has_body, not has_body

    def leave(self) -> None:
        self._capacity.release_bytes(self._held)
        self._capacity.add(self._path, arriving=-self._arriving, working=-self._working)

    async def receive(self) -> Message:
        """A refusal is raised here, so that the usual error handlers see it."""
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > _FREE_BYTES and not self._goes_to_disk:
            self._capacity.hold_bytes(self._seen - self._held)
            self._held = self._seen
        complete = message["type"] == "http.request" and not message.get("more_body", False)
        if complete and self._arriving:
            self._capacity.add(self._path, working=1, arriving=-1)
            self._arriving, self._working = False, True
        return message


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0 ") != ""
