"""Triton's infer and the service's routes as an asyncio server on a free port, with answers that a test chooses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

KEY = "k" * 40
#: (kind, number of the request of this kind) -> HTTP status and body; None for the usual answer.
Answer = Callable[[str, int], tuple[int, bytes] | None]
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class FakeServer:
    """``requests``: (kind, JSON document, headers) of all requests. Hovers of one session can be held back.

    Attributes:
        hold: hovers get no answer until so many of one person wait; then all but the newest are superseded.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answer: Answer = lambda kind, number: None
        self.hold = 1
        self.port = 0
        self.opened = 0
        self._held: dict[str, list[Callable[[bool], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def count(self, kind: str) -> int:
        return sum(other == kind for other, _, _ in self.requests)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # -- HTTP ----------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.opened += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._requests(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
            path = line.split(" ")[1]
            if headers.get("upgrade") == "websocket":
                await self._websocket(reader, writer, headers)
                return
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if not await self._http(path, headers, body, writer):
                return

    async def _http(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        kind, document = _read(path, headers, body)
        number = self.count(kind) + 1
        self.requests.append((kind, document, headers))
        chosen = self.answer(kind, number)
        if chosen == (0, b""):  # the connection is closed in the middle
            return False
        if chosen is None and kind == "hover" and self.hold > 1:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[bool] = loop.create_future()
            self._wait(document["parameters"]["session_id"], ended.set_result)
            if await ended:
                chosen = (400, b'{"error": "a newer one came [cancelled]"}')
        status, text = chosen or (200, _usual(kind, path))
        head = f"HTTP/1.1 {status} X\r\nInference-Header-Content-Length: 2\r\nContent-Length: {len(text)}\r\n\r\n"
        writer.write(head.encode() + text)
        await writer.drain()
        return True

    def _wait(self, session: str, end: Callable[[bool], None]) -> None:
        held = self._held.setdefault(session, [])
        held.append(end)
        if len(held) >= self.hold:
            for index, each in enumerate(held):
                each(index < len(held) - 1)
            held.clear()

    # -- WebSocket -----------------------------------------------------------------------------------------------

    async def _websocket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]
    ) -> None:
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + _GUID).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: " + accept + b"\r\n\r\n")
        send_frame(writer, 0x9, b"are you there")
        session = str(id(writer))
        while True:
            opcode, text = await read_frame(reader)
            if opcode == 0x8:
                return
            if opcode != 0x1:
                self.requests.append(("pong", {"text": text.decode()}, headers))
                continue
            document = json.loads(text)
            number = self.count("hover") + 1
            self.requests.append(("hover", document, headers))
            chosen = self.answer("hover", number)
            if chosen == (0, b""):
                return
            self._reply(writer, document["id"], chosen, session)

    def _reply(self, writer: asyncio.StreamWriter, name: int, chosen: tuple[int, bytes] | None, session: str) -> None:
        def end(superseded: bool) -> None:
            body = b'"superseded":true' if superseded else b'"result":{"mask":"' + b"m" * 70_000 + b'"}'
            send_frame(writer, 0x1, b'{"id":%d,%s}' % (name, body))

        if chosen is not None:
            send_frame(writer, 0x1, b'{"id":%d,%s' % (name, chosen[1][1:]))
        elif self.hold > 1:
            self._wait(session, end)
        else:
            end(False)


def _read(path: str, headers: dict[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
    if path.startswith("/v2/models/") and path.endswith("/infer"):
        document = json.loads(body[: int(headers["inference-header-content-length"])])
        document["binary"] = body[int(headers["inference-header-content-length"]) :]
        names = [each["name"] for each in document["inputs"]]
        hovers = document["parameters"].get("latest_wins", False)
        return ("image" if names == ["image"] else "hover" if hovers else "click"), document
    if path == "/v1/images":
        return "image", {"form": body}
    if path == "/v1/segment":
        return "click", json.loads(body)
    return path, {}


def _usual(kind: str, path: str) -> bytes:
    if kind == "image" and path.startswith("/v2"):
        return json.dumps({"outputs": [{"name": "image_key", "data": [KEY]}]}).encode()
    if kind == "image":
        return json.dumps({"image_key": KEY}).encode()
    return b"x" * 300_000 if kind in ("hover", "click") else b"{}"


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(opcode, payload) of a client's frame, which must be masked."""
    first, second = await reader.readexactly(2)
    assert second & 0x80
    size = second & 0x7F
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    mask = await reader.readexactly(4)
    payload = await reader.readexactly(size)
    return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def send_frame(writer: asyncio.StreamWriter, opcode: int, payload: bytes) -> None:
    """Sends a server's frame, which is not masked."""
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, size])
    elif size < 2**16:
        head = bytes([0x80 | opcode, 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 127]) + size.to_bytes(8, "big")
    writer.write(head + payload)


@contextlib.asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.contextmanager
def fake_server_thread() -> Iterator[FakeServer]:
    """The same on a thread of its own, for callers that block."""
    server, loop = FakeServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
