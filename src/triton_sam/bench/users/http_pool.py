"""Prebuilt HTTP requests on connections that are kept open, for one event loop.

Bodies are read into one buffer and counted, not kept: a mask of 100 kB costs the load generator one copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

_CHUNK = 2**18
_END_OF_HEAD = b"\r\n\r\n"
_CONNECT_SECONDS = 10.0
#: The status of a request that got no response.
LOST, UNREACHABLE = 0, -1


class Response(NamedTuple):
    """Status and body; the body of a 200 only if it was asked for. ``LOST`` and ``UNREACHABLE`` are statuses too."""

    status: int
    body: bytes


Done = Callable[[Response], None]


class _Request(NamedTuple):
    data: bytes | bytearray
    done: Done
    keep_body: bool


class _Connection(asyncio.BufferedProtocol):
    """One connection; one request at a time."""

    #: Shared by all connections of a process: each read is used up before the next one.
    _buffer = memoryview(bytearray(_CHUNK))

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._request: _Request | None = None
        self._head = bytearray()
        self._body = bytearray()
        self._status = 0
        self._left = 0
        self._is_reused = False

    def send(self, request: _Request) -> None:
        assert self._transport is not None
        self._request = request
        self._transport.write(request.data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    # -- asyncio's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        if self._status:
            self._take(data)
            return
        self._head += data
        end = self._head.find(_END_OF_HEAD)
        if end < 0:
            return
        head, rest = bytes(self._head[:end]), bytes(self._head[end + len(_END_OF_HEAD) :])
        self._head.clear()
        try:
            self._status = int(head[9:12])
            # With the start of the line: Triton also sends an Inference-Header-Content-Length.
            self._left = int(head.lower().split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
        except (ValueError, IndexError):  # not what these servers send
            self._status, self._is_reused = 0, False
            self.close()
            return
        self._take(memoryview(rest))

    def connection_lost(self, exc: Exception | None) -> None:
        request, self._request = self._request, None
        self._pool.dropped(self)
        if request is None:
            return
        if self._is_reused and not self._head and not self._status:
            # The server closed a kept connection just before: it has not seen the request.
            self._pool.send_on_new(request)
        else:
            request.done(Response(LOST, b""))

    # -- the body ----------------------------------------------------------------------------------------------

    def _take(self, data: memoryview) -> None:
        self._left -= len(data)
        request = self._request
        if request is None or self._left < 0:
            self.close()
            return
        if request.keep_body or self._status != HTTPStatus.OK:
            self._body += data
        if self._left == 0:
            response = Response(self._status, bytes(self._body))
            self._body.clear()
            self._status, self._request, self._is_reused = 0, None, True
            self._pool.returned(self)
            request.done(response)


class HttpPool:
    """As many connections to one server as there are requests in flight."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def send(self, data: bytes | bytearray, done: Done, *, keep_body: bool = False) -> None:
        """Sends a request; ``done`` is called once, unless the pool is closed before."""
        request = _Request(data, done, keep_body)
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing:
                connection.send(request)
                return
        self.send_on_new(request)

    def send_on_new(self, request: _Request) -> None:
        """Sends a request on a new connection."""
        if self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._connect(request))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, request: _Request) -> None:
        loop = asyncio.get_running_loop()
        try:
            opening = loop.create_connection(lambda: _Connection(self), *self._address)
            _, connection = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            request.done(Response(UNREACHABLE, str(error).encode()))
            return
        self._open.add(connection)
        connection.send(request)

    def returned(self, connection: _Connection) -> None:
        """A connection has its response."""
        self._idle.append(connection)

    def dropped(self, connection: _Connection) -> None:
        """A connection is lost."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """Closes all connections; requests in flight get no response."""
        self._is_closed = True
        for connection in list(self._open):
            connection.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the loop's next turn
