"""Ways of a person's requests to the server: each request gets exactly one :class:`Outcome`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from triton_sam.bench.users import http_pool, websocket
from triton_sam.bench.users.http_pool import HttpPool, Response
from triton_sam.bench.users.messages import ServiceMessages, error_kind
from triton_sam.bench.users.tally import ANSWERED, CONNECTION_LOST, SUPERSEDED, UNREACHABLE, Outcome

OnOutcome = Callable[[Outcome], None]
_CANCELLED = "cancelled"
_REFUSED = "refused"


class HoverChannel(Protocol):
    """Carries the hovers of one person."""

    def send(self, number: int, request: bytearray, done: OnOutcome) -> None:
        """Sends one hover."""

    async def close(self) -> None:
        """Ends the connection; hovers without an answer get none."""


def outcome_of(response: Response) -> Outcome:
    """The outcome of an HTTP request."""
    if response.status == HTTPStatus.OK:
        return Outcome(ANSWERED)
    if response.status == http_pool.LOST:
        return Outcome(CONNECTION_LOST, "the server closed the connection before its response")
    if response.status == http_pool.UNREACHABLE:
        return Outcome(UNREACHABLE, response.body.decode(errors="replace"))
    kind, message = error_kind(response.status, response.body)
    return Outcome(SUPERSEDED if kind == _CANCELLED else kind, message)


class HttpChannel:
    """Hovers as requests to Triton: as many connections as hovers are in flight."""

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool

    def send(self, number: int, request: bytearray, done: OnOutcome) -> None:
        self._pool.send(request, lambda response: done(outcome_of(response)))

    async def close(self) -> None:
        pass  # the pool has its own end


class SocketChannel:
    """Hovers as messages on the service's WebSocket, which is opened when it is needed."""

    def __init__(self, messages: ServiceMessages) -> None:
        self._messages = messages
        self._socket: websocket.HoverSocket | None = None
        self._opening: asyncio.Task[Outcome] | None = None
        self._pending: dict[int, OnOutcome] = {}
        self._unsent: list[bytearray] = []

    def send(self, number: int, request: bytearray, done: OnOutcome) -> None:
        self._pending[number] = done
        if self._socket is not None and self._socket.is_open:
            self._socket.send(request)
            return
        self._unsent.append(request)
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self.open())

    async def close(self) -> None:
        self._pending.clear()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            await asyncio.sleep(0)  # the transport closes in the loop's next turn

    async def open(self) -> Outcome:
        """Opens the WebSocket and sends what waits for it; ``answered`` if that worked."""
        site = self._messages.site
        try:
            socket = await websocket.open_socket(
                (site.host, site.port), self._messages.handshake(), self._answered, self._lost
            )
            if not socket.is_open:
                raise websocket.Refused("it was closed at once")
        except websocket.Refused as refusal:
            outcome = Outcome(_REFUSED, f"the service refused the hover WebSocket: {refusal}")
        except (OSError, asyncio.TimeoutError) as error:
            outcome = Outcome(UNREACHABLE, str(error))
        else:
            self._socket = socket
            for request in self._unsent:
                socket.send(request)
            self._unsent.clear()
            return Outcome(ANSWERED)
        self._unsent.clear()
        self._end_all(outcome)
        return outcome

    def _answered(self, response: websocket.HoverResponse) -> None:
        done = self._pending.pop(response.number, None)
        if done is None:
            return
        if response.outcome == websocket.RESULT:
            done(Outcome(ANSWERED))
        elif response.outcome == websocket.SUPERSEDED:
            done(Outcome(SUPERSEDED))
        else:
            done(Outcome(*error_kind(HTTPStatus.INTERNAL_SERVER_ERROR, response.text)))

    def _lost(self) -> None:
        self._socket = None
        self._end_all(Outcome(CONNECTION_LOST, "the service closed the hover WebSocket"))

    def _end_all(self, outcome: Outcome) -> None:
        pending, self._pending = self._pending, {}
        for done in pending.values():
            # Later: a person may send the next hover at once, when this channel is ready for it again.
            asyncio.get_running_loop().call_soon(done, outcome)
