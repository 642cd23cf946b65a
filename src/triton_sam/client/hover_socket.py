"""The service's hover WebSocket: prompts in, masks out; a newer prompt supersedes the older ones of its socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from triton_sam.client.service_errors import error_of_detail
from triton_sam.errors import Cancelled

log = logging.getLogger(__name__)

#: A session has a socket of its own; further sessions use plain requests.
_MAX_SOCKETS = 8
#: How long plain requests are used after a socket could not be opened.
_RETRY_SECONDS = 30.0

#: Opens a connection with these headers: aiohttp's ``ClientWebSocketResponse``.
OpenSocket = Callable[[Mapping[str, str]], Awaitable[Any]]
#: (session, the header by which a proxy chooses the server)
SocketKey = tuple[str, str | None]


class SocketLost(Exception):
    """The connection ended before the response; the request can be sent in another way."""


class HoverSocket:
    """One open WebSocket. Belongs to one event loop."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._ending = False
        self._reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        return not self._ending

    @property
    def is_idle(self) -> bool:
        return not self._pending

    async def ask(self, document: Mapping[str, Any]) -> Any:
        """Sends a prompt; returns its result. Raises Cancelled if a newer one superseded it, and SocketLost.

        If the waiting task is cancelled and no other waits, the socket is closed: the server then drops its prompts.
        """
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            if not self.is_open:
                raise SocketLost
            await self._socket.send_str(json.dumps({"id": number, **document}))
            return await answer
        except (ConnectionError, RuntimeError) as error:  # aiohttp's, for a socket that is closing
            raise SocketLost from error
        except asyncio.CancelledError:
            if len(self._pending) == 1:
                self._end()
            raise
        finally:
            del self._pending[number]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # or asyncio would log one that arrived too late

    async def close(self) -> None:
        self._end()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _end(self) -> None:
        self._ending = True
        self._reading.cancel()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if isinstance(message.data, str):
                    self._settle(json.loads(message.data))
        except ValueError as error:
            log.debug("a hover response cannot be read: %s", error)
        finally:
            self._ending = True
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(SocketLost())
            with contextlib.suppress(Exception):
                await self._socket.close()

    def _settle(self, response: Mapping[str, Any]) -> None:
        answer = self._pending.get(response.get("id"))  # type: ignore[arg-type]  # any other id is not ours
        if answer is None or answer.done():
            return
        if "result" in response:
            answer.set_result(response["result"])
        elif "error" in response:
            answer.set_exception(error_of_detail(response["error"]))
        else:
            answer.set_exception(Cancelled("the request was superseded by a newer one of its session"))


class HoverSockets:
    """The open sockets of a client, one for each session and image. Belongs to one event loop."""

    def __init__(self, open_socket: OpenSocket) -> None:
        self._open_socket = open_socket
        self._sockets: dict[SocketKey, asyncio.Task[HoverSocket | None]] = {}
        self._refused_until = 0.0
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, key: SocketKey, headers: Mapping[str, str]) -> HoverSocket | None:
        """The socket of a session, opened if needed; None if it must use plain requests."""
        opening = self._sockets.pop(key, None)
        if opening is not None and opening.done() and not _is_open(opening):
            opening = None
        if opening is None:
            if asyncio.get_running_loop().time() < self._refused_until or not self._has_room():
                return None
            opening = asyncio.create_task(self._open(headers))
        self._sockets[key] = opening  # at the end: the first one is the least recently used
        return await asyncio.shield(opening)

    async def close(self) -> None:
        for opening in self._sockets.values():
            opening.cancel()
            self._end(opening)
        self._sockets.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _open(self, headers: Mapping[str, str]) -> HoverSocket | None:
        try:
            return HoverSocket(await self._open_socket(headers))
        except Exception as error:  # the plain request that follows reports what is wrong
            log.debug("no hover socket: %s", error)
            self._refused_until = asyncio.get_running_loop().time() + _RETRY_SECONDS
            return None

    def _has_room(self) -> bool:
        """Whether another socket may be opened; closes one that is lost or idle if that is needed."""
        for key, opening in list(self._sockets.items()):
            if opening.done() and not _is_open(opening):
                del self._sockets[key]
        if len(self._sockets) < _MAX_SOCKETS:
            return True
        for key, opening in self._sockets.items():
            if opening.done() and (socket := opening.result()) is not None and socket.is_idle:
                self._end(self._sockets.pop(key))
                return True
        return False

    def _end(self, opening: asyncio.Task[HoverSocket | None]) -> None:
        async def close() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                socket = await opening
                if socket is not None:
                    await socket.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _is_open(opening: asyncio.Task[HoverSocket | None]) -> bool:
    if opening.cancelled():
        return False
    socket = opening.result()
    return socket is not None and socket.is_open
