"""The client's side of the hover WebSocket, with prebuilt frames: as much of RFC 6455 as the service uses.

Compression is not offered, and of a response only its id and its outcome are read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import NamedTuple

from triton_sam.bench.users.messages import frame_head

_CONNECT_SECONDS = 10.0
_CONTINUATION, _TEXT, _CLOSE, _PING = 0x0, 0x1, 0x8, 0x9
_FINAL = 0x80
_CLOSE_FRAME, _PONG_FRAME = 0x88, 0x8A
_TWO_BYTES, _EIGHT_BYTES = 126, 127
#: How the service writes a response; any other spelling is read as JSON.
_START = re.compile(rb'\{"id":\s*(\d+),\s*"(result|superseded|error)":')
SUPERSEDED, RESULT, ERROR = "superseded", "result", "error"


class HoverResponse(NamedTuple):
    """The response to the hover with this number; ``text`` is the message of an error."""

    number: int
    outcome: str
    text: bytes


class Refused(Exception):
    """The service did not open the WebSocket: the first line of its response."""


def read_response(text: bytes) -> HoverResponse | None:
    """A message of the service; None if it is not a response to a numbered hover."""
    found = _START.match(text)
    if found is not None:
        outcome = found[2].decode()
        return HoverResponse(int(found[1]), outcome, text if outcome == ERROR else b"")
    try:
        document = json.loads(text)
        number = int(document["id"])
    except (ValueError, LookupError, TypeError):
        return None
    outcome = next((name for name in (RESULT, ERROR) if name in document), SUPERSEDED)
    return HoverResponse(number, outcome, text)


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """(opcode, payload) of each message that is complete now; fragments are joined."""
        self._buffer += data
        messages = []
        while (frame := self._next()) is not None:
            first, payload = frame
            opcode = first & 0x0F
            if opcode > _TEXT + 1:  # a control frame, which may stand between fragments
                messages.append((opcode, payload))
                continue
            if not self._parts and first & _FINAL:
                messages.append((_TEXT, payload))
                continue
            self._parts += payload
            if first & _FINAL:
                messages.append((_TEXT, bytes(self._parts)))
                self._parts.clear()
        return messages

    def _next(self) -> tuple[int, bytes] | None:
        """(first byte, payload) of the next frame; a server's frames are not masked."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size in (_TWO_BYTES, _EIGHT_BYTES):
            start = 4 if size == _TWO_BYTES else 10
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if len(buffer) < start + size:
            return None
        first, payload = buffer[0], bytes(buffer[start : start + size])
        del buffer[: start + size]
        return first, payload


class HoverSocket(asyncio.Protocol):
    """One open WebSocket. Made by :func:`open_socket`."""

    def __init__(
        self, handshake: bytes, on_response: Callable[[HoverResponse], None], on_lost: Callable[[], None]
    ) -> None:
        self._handshake = handshake
        self._on_response = on_response
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._head = bytearray()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: bytes | bytearray) -> None:
        """Sends a whole frame."""
        assert self._transport is not None
        self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.write(frame_head(0, _CLOSE_FRAME))
            self._transport.close()

    # -- asyncio's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._handshake)

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self._head += data
            head, end, rest = bytes(self._head).partition(b"\r\n\r\n")
            if not end:
                return
            line = head.partition(b"\r\n")[0].decode(errors="replace")
            if line.split(" ")[1:2] != ["101"]:
                self.opened.set_exception(Refused(line))
                self._abort()
                return
            self.opened.set_result(None)
            data = rest
        for opcode, payload in self._frames.feed(data):
            if opcode == _TEXT:
                response = read_response(payload)
                if response is not None:
                    self._on_response(response)
            elif opcode == _PING:
                self.send(frame_head(len(payload), _PONG_FRAME) + payload)
            elif opcode == _CLOSE:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.opened.done():
            if not self.opened.cancelled() and self.opened.exception() is None:
                self._on_lost()
        else:
            self.opened.set_exception(Refused("the connection was closed"))

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_socket(
    address: tuple[str, int],
    handshake: bytes,
    on_response: Callable[[HoverResponse], None],
    on_lost: Callable[[], None],
) -> HoverSocket:
    """Opens a WebSocket; raises OSError, asyncio.TimeoutError or :class:`Refused`."""
    loop = asyncio.get_running_loop()

    async def opening() -> HoverSocket:
        _, socket = await loop.create_connection(lambda: HoverSocket(handshake, on_response, on_lost), *address)
        try:
            await socket.opened
        except BaseException:
            socket._abort()
            raise
        return socket

    return await asyncio.wait_for(opening(), _CONNECT_SECONDS)
