"""What uvicorn leaves open: connections that never send a head, that never read an answer, or that are too many."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from triton_sam.service.admission.door import Door

HEAD_SECONDS = 20.0
LOOK_SECONDS = 20.0
#: About 1 MiB of answers to pings, which nobody may leave unread.
MOST_PONGS = 8192


class _Reader:
    """Looks from time to time whether a client takes what waits for it; ends the connection where it does not.

    A transport that is closed still waits for its buffer to be read, for ever; only an abort ends that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._waited = 0
        self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def drained(self) -> None:
        """The buffer was nearly empty in between, so what is in it later is new."""
        self._waited = 0

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waits = self._transport.get_write_buffer_size()
        if self._waited and waits >= self._waited:
            self._transport.abort()
            return
        self._waited = waits
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a time limit for a request's head, a limit on connections, and a door that may be shut."""

    most_connections = 2048
    door: Door | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader: _Reader | None = None
        self._is_refusing = False
        self._has_refused = False
        self._is_last = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:  # sockets count too
            transport.abort()
            return
        self._reader = _Reader(self.loop, transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._unset_keepalive_if_required()  # uvicorn forgets it after a reset
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._stop_timers()  # the socket has its own
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        self._has_refused = False
        super().data_received(data)

    def shutdown(self) -> None:
        if self._is_refusing:
            self._is_last = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        self._expect_head()  # anew: the first bytes may come at the end of a long pause
        self._unset_keepalive_if_required()  # a refusal at the door may have set it in this very turn
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._is_refusing = self._finds_the_door_shut()
        if self._is_refusing:
            self._expect_head()  # the rest of the request has as long
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refusing:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refusing:
            super().on_message_complete()
            return
        self._is_refusing, self._has_refused = False, True
        if not self.transport.is_closing():
            self._refuse()
            self.on_response_complete()

    def _refuse(self) -> None:
        if self.door is not None:
            last = [(b"connection", b"close")] if self._is_last else []
            self.transport.write(self.door.refusal(self.headers, [*self.server_state.default_headers, *last]))
            if self._is_last:
                self.transport.close()

    def _finds_the_door_shut(self) -> bool:
        """Whether a request gets its refusal here.

        One that stands in line behind another, or is the last of its connection, does not. Nor do several that came in
        one piece, or the requests of a client who does not read: uvicorn makes these wait for each other.
        """
        if self.door is None or not (self.cycle is None or self.cycle.response_complete):
            return False
        if self._has_refused or self.flow.write_paused:
            return False
        shut = self.door.is_shut(self.parser.get_method(), self.url, self.headers)
        return shut and self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_head()

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.drained()
        super().resume_writing()

    def _expect_head(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._is_refusing:
            self._is_last = True  # the rest of the body may still come, and is nobody's request
            self._refuse()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._expect_head()  # half a pipelined head: the request before it has a time limit of its own
        else:
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        if self._reader is not None:
            self._reader.stop()
            self._reader = None


def http_protocol(most_connections: int, door: Door | None = None) -> type[HttpProtocol]:
    """The class for a server with so many connections and this door; uvicorn's configuration has no fields for them."""
    return type("HttpProtocol", (HttpProtocol,), {"most_connections": most_connections, "door": door})


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets that end when their client does not read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader: _Reader | None = None
        self._unread_pongs = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._reader = _Reader(self.loop, self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reader is not None:
            self._reader.stop()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.drained()
        super().resume_writing()

    def handle_ping(self) -> None:
        super().handle_ping()
        # Answers to pings pass by every flow control. They are counted, because a large mask may wait before them.
        self._unread_pongs = self._unread_pongs + 1 if self.transport.get_write_buffer_size() else 0
        if self._unread_pongs > MOST_PONGS:
            self.transport.abort()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # A refusal with a reason ends the handshake as well; uvicorn would log it as an error of ours.
            self.handshake_complete = True
