"""Connection limits as uvicorn protocol classes: their number, a timeout for a request's head, and stalled readers.

uvicorn itself has none of these.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from triton_sam.service.admission.capacity import LocalTally, Tally
from triton_sam.service.admission.load_shedding import LoadShedder
from triton_sam.service.admission.paths import VIDEO_LIVE

HEAD_SECONDS = 20.0
STALL_CHECK_SECONDS = 20.0
#: Of a message of a live video, which is one image file.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: About 1 MiB of pongs that a client has not read.
MAX_UNREAD_PONGS = 8192


class _StallCheck:
    """Checks periodically whether a client reads its responses; aborts the connection if it does not.

    A closed transport waits forever for its buffer to be read; only an abort ends that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._unread_before = 0
        self._timer = loop.call_later(STALL_CHECK_SECONDS, self._check)

    def drained(self) -> None:
        """Reports that the buffer was nearly empty, so that its later content is new."""
        self._unread_before = 0

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        unread = self._transport.get_write_buffer_size()
        if self._unread_before and unread >= self._unread_before:
            self._transport.abort()
            return
        self._unread_before = unread
        self._timer = self._loop.call_later(STALL_CHECK_SECONDS, self._check)


class ConnectionLimit:
    """How many connections are open, WebSockets too, against the limits of a process and of the whole service."""

    def __init__(self, of_process: int, of_service: int, tally: Tally | None = None) -> None:
        self._of_process = of_process
        self._of_service = of_service
        self._tally: Tally = tally or LocalTally()
        self._counted = 0

    def count(self, connections: int) -> bool:
        """Notes how many this process has now; whether they, or those of all processes, are too many."""
        total = self._tally.add("connections", connections - self._counted)
        self._counted = connections
        return connections > self._of_process or total > self._of_service


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a timeout for a request's head, a limit on connections, and load shedding."""

    connection_limit = ConnectionLimit(2048, 2048)
    load_shedder: LoadShedder | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_check: _StallCheck | None = None
        self._is_refusing = False
        self._has_refused = False
        self._closes = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.connection_limit.count(len(self.connections)):
            transport.abort()
            return
        self._stall_check = _StallCheck(self.loop, transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._unset_keepalive_if_required()  # uvicorn forgets it after a reset
        super().connection_lost(exc)
        self.connection_limit.count(len(self.connections))

    def handle_websocket_upgrade(self) -> None:
        self._stop_timers()  # the WebSocket has its own
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        self._has_refused = False
        super().data_received(data)

    def shutdown(self) -> None:
        if self._is_refusing:
            self._closes = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        self._expect_head()  # restarts the timer: the first bytes may come at the end of a long pause
        self._unset_keepalive_if_required()  # a shed request may have set it in this turn of the loop
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._is_refusing = self._is_shed()
        if self._is_refusing:
            self._expect_head()  # the rest of the request has the same timeout
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
        if self.load_shedder is not None:
            close = [(b"connection", b"close")] if self._closes else []
            default_headers = [*self.server_state.default_headers, *close]
            self.transport.write(self.load_shedder.response(self.headers, default_headers))
            if self._closes:
                self.transport.close()

    def _is_shed(self) -> bool:
        """Whether a request is refused here.

        Not if it is pipelined behind another or the last of its connection. Nor if several arrived in one read, or if
        the client does not read its responses: uvicorn makes these wait for each other.
        """
        if self.load_shedder is None or not (self.cycle is None or self.cycle.response_complete):
            return False
        if self._has_refused or self.flow.write_paused:
            return False
        refused = self.load_shedder.refuses(self.parser.get_method(), self.url, self.headers)
        return refused and self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_head()

    def resume_writing(self) -> None:
        if self._stall_check is not None:
            self._stall_check.drained()
        super().resume_writing()

    def _expect_head(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if self._is_refusing:
            self._closes = True  # the rest of the body may still arrive, and must not be parsed as a request
            self._refuse()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._expect_head()  # half a pipelined head: the request before it has its own timeout
        else:
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        if self._stall_check is not None:
            self._stall_check.stop()
            self._stall_check = None


def http_protocol(limit: ConnectionLimit, load_shedder: LoadShedder | None = None) -> type[HttpProtocol]:
    """An :class:`HttpProtocol` subclass with these values; uvicorn's configuration has no fields for them."""
    return type("HttpProtocol", (HttpProtocol,), {"connection_limit": limit, "load_shedder": load_shedder})


def socket_protocol(limit: ConnectionLimit) -> type[SocketProtocol]:
    """As :func:`http_protocol`, for WebSockets."""
    return type("SocketProtocol", (SocketProtocol,), {"connection_limit": limit})


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets that are aborted if their client does not read."""

    connection_limit = ConnectionLimit(2048, 2048)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stall_check: _StallCheck | None = None
        self._unread_pongs = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._stall_check = _StallCheck(self.loop, self.transport)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if event.path.partition("?")[0] == VIDEO_LIVE:
            for name in {"max_message_size", "max_size"} & vars(self.conn).keys():  # by version of websockets
                setattr(self.conn, name, MAX_FRAME_BYTES)

    def start_keepalive(self) -> None:
        # Behind frames that wait a pong would come too late.
        if self.scope["path"] != VIDEO_LIVE:
            super().start_keepalive()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall_check is not None:
            self._stall_check.stop()
        super().connection_lost(exc)
        self.connection_limit.count(len(self.connections))

    def resume_writing(self) -> None:
        if self._stall_check is not None:
            self._stall_check.drained()
        super().resume_writing()

    def handle_ping(self) -> None:
        super().handle_ping()
        # Pongs bypass flow control. They are counted, because a large mask may be queued before them.
        self._unread_pongs = self._unread_pongs + 1 if self.transport.get_write_buffer_size() else 0
        if self._unread_pongs > MAX_UNREAD_PONGS:
            self.transport.abort()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # A denial response ends the handshake too; otherwise uvicorn would log it as an application error.
            self.handshake_complete = True
