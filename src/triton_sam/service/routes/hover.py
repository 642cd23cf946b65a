"""A socket for a mouse that moves: prompts in, masks out, and only the newest one counts."""

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
from triton_sam.errors import Cancelled, Forbidden, InternalError, InvalidInput, NotAuthorised, TritonSamError
from triton_sam.service import calls
from triton_sam.service.admission import access
from triton_sam.service.admission.guard import HOVER, Guard
from triton_sam.service.faults import error_document, error_response
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.telemetry import visits
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.telemetry.visits import Visit
from triton_sam.service.tokens import Caller

log = logging.getLogger(__name__)

POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013
#: Answers that may wait for a client that does not read them; notices are small, and a page counts by them.
_MAX_UNSENT = 16
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
_MAX_NOTICES = 1024
_LONGEST_ID = 200
_FAREWELL_SECONDS = 2.0
_RESULT, _SUPERSEDED, _ERROR = "result", "superseded", "error"


def hover_router(gateway: Gateway, metrics: ServiceMetrics, guard: Guard) -> APIRouter:
    """``/v1/hover``."""
    router = APIRouter()
    open_sockets: set[_HoverSocket] = set()

    @router.websocket("/v1/hover")
    async def hover(socket: WebSocket) -> None:
        try:
            caller = _admitted(socket, gateway, guard)
        except TritonSamError as refusal:
            await _deny(socket, refusal)
            return
        await socket.accept(access.SUBPROTOCOL if access.SUBPROTOCOL in socket.scope["subprotocols"] else None)
        if len(open_sockets) >= gateway.settings.service_sockets:
            await socket.close(TRY_AGAIN_LATER, "too many hover sockets are open: try again in a moment")
            return
        hovering = _HoverSocket(socket, gateway, metrics, _Permits(guard, caller, access.address_of(socket.scope)))
        open_sockets.add(hovering)
        metrics.websockets.inc()
        try:
            await hovering.run()
        finally:
            open_sockets.discard(hovering)
            metrics.websockets.dec()

    return router


def _admitted(socket: WebSocket, gateway: Gateway, guard: Guard) -> Caller | None:
    """Whose socket it is; raises where it may not be opened."""
    if not access.is_welcome(socket.headers, gateway.settings.cors_origins):
        raise Forbidden("this web page may not use the service: add its address to TRITON_SAM_CORS_ORIGINS")
    offered = access.socket_token(socket.headers, socket.scope["subprotocols"])
    caller = guard.enter(offered, access.address_of(socket.scope))
    if caller is not None:
        visits.name_caller(caller.name)
    return caller


@dataclass(slots=True)
class _Permits:
    """Whose messages they are, and whether one more may come."""

    guard: Guard
    caller: Caller | None
    address: str

    def take(self) -> None:
        """RateLimited where the rate is used up; NotAuthorised where the token is not valid any more."""
        self.caller = self.guard.still(self.caller)
        self.guard.take(self.caller, self.address, HOVER)


async def _deny(socket: WebSocket, refusal: TritonSamError) -> None:
    """Before the handshake: with the reason where the server can send one, else as a plain refusal."""
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(error_response(refusal))
    else:
        await socket.close(POLICY_VIOLATION)


@dataclass(frozen=True, slots=True)
class _Answer:
    """``name`` and ``body`` are JSON already."""

    number: int
    outcome: str
    name: str
    body: str

    @property
    def text(self) -> str:
        return f'{{"id":{self.name},{self.body}}}'


class _HoverSocket:
    """One socket and its session."""

    def __init__(self, socket: WebSocket, gateway: Gateway, metrics: ServiceMetrics, permits: _Permits) -> None:
        self._socket = socket
        self._permits = permits
        self._visit = visits.current() or Visit(uuid.uuid4().hex, "/v1/hover")
        self._opened = time.perf_counter()
        self._gateway = gateway
        self._metrics = metrics
        self._session = f"socket/{uuid.uuid4().hex}"
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_Answer] = deque()
        self._something_to_send = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._farewell: tuple[int, str] | None = None
        self._number = 0
        self._closed = False

    async def run(self) -> None:
        """Until the socket closes, or its client does not read; nothing of it is left afterwards."""
        parts = [asyncio.create_task(part) for part in (self._read(), self._send(), self._hung_up.wait())]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed = True
            with contextlib.suppress(TritonSamError):  # a service that stops has dropped everything already
                self._gateway.cancel(self._session)
            visits.log_socket(self._visit, self._number, time.perf_counter() - self._opened)
            for part in parts:
                part.cancel()
            ends = await asyncio.gather(*parts, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, WebSocketDisconnect):
                raise end
        if self._farewell is not None:
            # The farewell may find no room either; the connection ends when this returns.
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
                await asyncio.wait_for(self._socket.close(*self._farewell), _FAREWELL_SECONDS)

    # -- in ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._number += 1
            visit = self._message_visit(self._number)
            with visits.entered(visit):
                await self._take(self._number, message.get("text"), visit)

    def _message_visit(self, number: int) -> Visit:
        """A message is a request of its own: its id is the socket's and its number."""
        visit = Visit(f"{self._visit.request_id}.{number}", self._visit.route, self._visit.caller)
        visit.span = self._gateway.tracing.request("WS", visit.route, self._socket.headers, visit.request_id)
        return visit

    async def _take(self, number: int, text: str | None, visit: Visit) -> None:
        name = "null"
        try:
            self._permits.take()
            if text is None:
                raise InvalidInput("a hover message is JSON text, not bytes")
            most = calls.most_parts_of_a_message(self._gateway.settings)
            document = await calls.by_size(len(text), lambda: calls.json_object(text, most))
            name = _checked_id(document.pop("id", None))
            call = await calls.segment_call(self._gateway, document, len(text))
            ticket = self._gateway.submit(call, self._session, latest_wins=True)
        except TritonSamError as error:
            visit.span.end_request(error.http_status, visit.caller)
            if isinstance(error, NotAuthorised):
                self._hang_up(POLICY_VIOLATION, "the token is not valid any more")
            else:
                self._answer(number, name, self._gateway.public(error))
        else:
            # Answers come on the loop, but a lost server is told of on its supervisor's thread.
            ticket.future.add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(self._landed, number, name, future, visit)
            )

    def _landed(self, number: int, name: str, future: Future[Outputs], visit: Visit) -> None:
        status = 200
        try:
            self._answer(number, name, json_output(future.result()).decode())
        except TritonSamError as error:
            status = error.http_status
            self._answer(number, name, self._gateway.public(error))
        except Exception:  # nobody else would answer this message
            log.exception("a hover's answer failed in a way that nobody expected")
            status = InternalError.http_status
            self._answer(number, name, InternalError("the service failed on this message: its log has the reason"))
        finally:
            visit.span.end_request(status, visit.caller)

    # -- out --------------------------------------------------------------------------------------------------

    def _answer(self, number: int, name: str, content: str | TritonSamError) -> None:
        """Takes an answer in for sending; what grows old while a client does not read is dropped first."""
        if self._closed:
            return
        if isinstance(content, str):
            answer = _Answer(number, _RESULT, name, f'"result":{content}')
            # A mask that waits behind a newer one is as good as superseded, and masks are large.
            self._unsent = deque(_aged(other, number) for other in self._unsent)
        elif isinstance(content, Cancelled):
            answer = _superseded(number, name)
        else:
            answer = _Answer(number, _ERROR, name, json.dumps(error_document(content))[1:-1])
        self._metrics.hovers.labels(answer.outcome).inc()
        self._unsent.append(answer)
        notices = sum(other.outcome == _SUPERSEDED for other in self._unsent)
        if notices > _MAX_NOTICES:
            self._unsent = deque(other for other in self._unsent if other.outcome != _SUPERSEDED)
        if len(self._unsent) - notices > _MAX_UNSENT or self._bytes_behind() > _MAX_UNSENT_BYTES:
            self._hang_up(TRY_AGAIN_LATER, "answers are not read: read them, or send less")
        self._something_to_send.set()

    def _hang_up(self, code: int, reason: str) -> None:
        self._closed = True
        self._farewell = (code, reason)
        self._hung_up.set()

    def _bytes_behind(self) -> int:
        """Bytes that wait, without the largest answer: a single one may be as large as it is."""
        sizes = [len(answer.name) + len(answer.body) for answer in self._unsent]
        return sum(sizes) - max(sizes, default=0)

    async def _send(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._unsent:
                await self._socket.send_text(self._unsent.popleft().text)


def _superseded(number: int, name: str) -> _Answer:
    return _Answer(number, _SUPERSEDED, name, '"superseded":true')


def _aged(answer: _Answer, newest: int) -> _Answer:
    is_old = answer.outcome == _RESULT and answer.number < newest
    return _superseded(answer.number, answer.name) if is_old else answer


def _checked_id(name: Any) -> str:
    """Whatever a client calls its message, as JSON: nothing, a number or a string."""
    is_number = isinstance(name, int | float) and not isinstance(name, bool)
    if name is None or is_number or (isinstance(name, str) and len(name) <= _LONGEST_ID):
        try:
            return json.dumps(name, allow_nan=False)
        except ValueError:  # JSON has no infinity, but Python reads 1e999 as one
            pass
    raise InvalidInput(f"id is a finite number or a string of at most {_LONGEST_ID} characters")
