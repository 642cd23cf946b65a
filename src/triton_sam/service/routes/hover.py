"""The hover WebSocket, ``/v1/hover``: prompts in, masks out; a newer prompt supersedes older ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from triton_sam.client.dispatch import Outputs
from triton_sam.errors import (
    Cancelled,
    InternalError,
    InvalidInput,
    NotAuthorised,
    QueueFull,
    TritonSamError,
)
from triton_sam.service import json_bodies
from triton_sam.service.admission import authentication
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.error_responses import error_document
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.routes import sockets
from triton_sam.service.routes.sockets import POLICY_VIOLATION, TRY_AGAIN_LATER, RateLimit
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.access_log import log_websocket
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.telemetry.request_context import RequestContext
from triton_sam.service.triton_calls import segment_call

log = logging.getLogger(__name__)

#: Unsent responses of a slow reader. Notices ("superseded") have their own limit: they are small, and pages count them.
_MAX_UNSENT = 16
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
_MAX_NOTICES = 1024
_MAX_ID = 200
_CLOSE_SECONDS = 2.0
_RESULT, _SUPERSEDED, _ERROR = "result", "superseded", "error"


def hover_router(
    gateway: Gateway, metrics: ServiceMetrics, access: AccessControl, capacity: ServiceCapacity
) -> APIRouter:
    """The router of ``/v1/hover``."""
    router = APIRouter()

    @router.websocket("/v1/hover")
    async def hover(socket: WebSocket) -> None:
        try:
            caller = sockets.authenticated(socket, gateway.settings, access)
        except TritonSamError as refusal:
            await sockets.deny(socket, refusal)
            return
        offers_subprotocol = authentication.SUBPROTOCOL in socket.scope["subprotocols"]
        await socket.accept(authentication.SUBPROTOCOL if offers_subprotocol else None)
        try:
            capacity.open_socket()
        except QueueFull as refusal:
            await socket.close(TRY_AGAIN_LATER, str(refusal))
            return
        address = authentication.client_address(socket.scope)
        metrics.websockets.inc()
        try:
            await _HoverSocket(socket, gateway, metrics, RateLimit(access, caller, address)).run()
        finally:
            capacity.close_socket()
            metrics.websockets.dec()

    return router


@dataclass(frozen=True, slots=True)
class _HoverResponse:
    """One response; ``name`` and ``body`` are JSON texts."""

    number: int
    outcome: str
    name: str
    body: str

    @property
    def text(self) -> str:
        return f'{{"id":{self.name},{self.body}}}'


class _HoverSocket:
    """One WebSocket and its session."""

    def __init__(self, socket: WebSocket, gateway: Gateway, metrics: ServiceMetrics, rate_limit: RateLimit) -> None:
        self._socket = socket
        self._rate_limit = rate_limit
        self._context = request_context.current() or RequestContext(uuid.uuid4().hex, "/v1/hover")
        self._opened = time.perf_counter()
        self._gateway = gateway
        self._metrics = metrics
        self._session = f"socket/{uuid.uuid4().hex}"
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_HoverResponse] = deque()
        self._something_to_send = asyncio.Event()
        self._closing = asyncio.Event()
        self._close_reason: tuple[int, str] | None = None
        self._number = 0
        self._closed = False

    async def run(self) -> None:
        """Serves until the WebSocket closes or its client stops reading; then cancels its session."""
        parts = [asyncio.create_task(part) for part in (self._read(), self._send(), self._closing.wait())]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed = True
            with contextlib.suppress(TritonSamError):  # a stopping service has already cancelled everything
                self._gateway.cancel(self._session)
            log_websocket(self._context, self._number, time.perf_counter() - self._opened)
            for part in parts:
                part.cancel()
            ends = await asyncio.gather(*parts, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, WebSocketDisconnect):
                raise end
        if self._close_reason is not None:
            # The close frame may not fit into the buffer; the connection ends when this returns.
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
                await asyncio.wait_for(self._socket.close(*self._close_reason), _CLOSE_SECONDS)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._number += 1
            context = self._message_context(self._number)
            with request_context.use(context):
                await self._handle(self._number, message.get("text"), context)

    def _message_context(self, number: int) -> RequestContext:
        """A message is traced as a request; its id is the WebSocket's request id and the message's number."""
        request_id = f"{self._context.request_id}.{number}"
        context = RequestContext(request_id, self._context.route, self._context.caller)
        context.span = self._gateway.tracing.request("WS", context.route, self._socket.headers, request_id)
        return context

    async def _handle(self, number: int, text: str | None, context: RequestContext) -> None:
        name = "null"
        try:
            self._rate_limit.check()
            if text is None:
                raise InvalidInput("a hover message must be JSON text, not bytes")
            max_parts = json_bodies.max_message_parts(self._gateway.settings)
            document = await json_bodies.by_size(len(text), lambda: json_bodies.json_object(text, max_parts))
            name = _checked_id(document.pop("id", None))
            call = await segment_call(self._gateway, document, len(text))
            ticket = self._gateway.submit(call, self._session, latest_wins=True)
        except TritonSamError as error:
            context.span.end_request(error.http_status, context.caller)
            if isinstance(error, NotAuthorised):
                self._close(POLICY_VIOLATION, "the token is no longer valid")
            else:
                self._respond(number, name, self._gateway.public(error))
        else:
            # Responses arrive on the event loop, but a lost server is reported on the supervisor's thread.
            ticket.future.add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(self._complete, number, name, future, context)
            )

    def _complete(self, number: int, name: str, future: Future[Outputs], context: RequestContext) -> None:
        status = 200
        try:
            self._respond(number, name, json_output(future.result()).decode())
        except TritonSamError as error:
            status = error.http_status
            self._respond(number, name, self._gateway.public(error))
        except Exception:  # without this, the message would get no response
            log.exception("unexpected exception in a hover response")
            status = InternalError.http_status
            self._respond(number, name, InternalError("the service failed on this message: see its log"))
        finally:
            context.span.end_request(status, context.caller)

    # -- sending --------------------------------------------------------------------------------------------------

    def _respond(self, number: int, name: str, content: str | TritonSamError) -> None:
        """Queues a response. If the client reads slowly, outdated masks are dropped first."""
        if self._closed:
            return
        if isinstance(content, str):
            response = _HoverResponse(number, _RESULT, name, f'"result":{content}')
            # An unsent mask is superseded by a newer one, and masks are large.
            self._unsent = deque(_superseded_if_older(other, number) for other in self._unsent)
        elif isinstance(content, Cancelled):
            response = _superseded(number, name)
        else:
            response = _HoverResponse(number, _ERROR, name, json.dumps(error_document(content))[1:-1])
        self._metrics.hovers.labels(response.outcome).inc()
        self._unsent.append(response)
        notices = sum(other.outcome == _SUPERSEDED for other in self._unsent)
        if notices > _MAX_NOTICES:
            self._unsent = deque(other for other in self._unsent if other.outcome != _SUPERSEDED)
        if len(self._unsent) - notices > _MAX_UNSENT or self._unsent_bytes() > _MAX_UNSENT_BYTES:
            self._close(TRY_AGAIN_LATER, "the responses are not being read: read them, or send fewer messages")
        self._something_to_send.set()

    def _close(self, code: int, reason: str) -> None:
        self._closed = True
        self._close_reason = (code, reason)
        self._closing.set()

    def _unsent_bytes(self) -> int:
        """Unsent bytes without the largest response: a single one may have any size."""
        sizes = [len(response.name) + len(response.body) for response in self._unsent]
        return sum(sizes) - max(sizes, default=0)

    async def _send(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._unsent:
                await self._socket.send_text(self._unsent.popleft().text)


def _superseded(number: int, name: str) -> _HoverResponse:
    return _HoverResponse(number, _SUPERSEDED, name, '"superseded":true')


def _superseded_if_older(answer: _HoverResponse, newest: int) -> _HoverResponse:
    is_old = answer.outcome == _RESULT and answer.number < newest
    return _superseded(answer.number, answer.name) if is_old else answer


def _checked_id(name: Any) -> str:
    """A client's id of its message as JSON text: null, a number or a string."""
    is_number = isinstance(name, int | float) and not isinstance(name, bool)
    if name is None or is_number or (isinstance(name, str) and len(name) <= _MAX_ID):
        try:
            return json.dumps(name, allow_nan=False)
        except ValueError:  # JSON has no infinity, but Python parses 1e999 as one
            pass
    raise InvalidInput(f"id must be a finite number or a string of at most {_MAX_ID} characters")
