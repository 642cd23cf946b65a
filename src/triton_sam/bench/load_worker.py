"""One load-generating client in its own process. Run as a script; imports only the standard library.

A process that imports the package takes a third of a second and 40 MB to start, and tritonclient needs a millisecond
for each request: sixty-four such clients would measure themselves. This one sends prebuilt bytes over one connection
that it keeps open, and reads just enough of the response to find its end.

Standard input, a line of JSON each: first the :class:`load_clients.RepeatedRequest`, then one ``{"begin", "start",
"stop"}`` for every run, in seconds of the monotonic clock, which all processes of a machine share. Standard output:
``ready``, then one line for every run.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_CHUNK = 2**18
_TIMEOUT_SECONDS = 300.0
#: The pause of a refused client before its next request.
_REFUSED_SECONDS = 0.05
_REFUSED = 503


class Connection:
    """A minimal HTTP/1.1 connection: prebuilt requests, responses with a Content-Length."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._buffer = memoryview(bytearray(_CHUNK))

    def send(self, request: bytes | bytearray, *, keep_body: bool = False) -> tuple[int, bytes | bytearray]:
        """Sends a request; returns the status, and the body of a failure or with ``keep_body``.

        Raises OSError if the connection is lost.
        """
        return self._exchange(request, lambda connection: self._receive(connection, keep_body))

    def send_into(self, request: bytes | bytearray, room: memoryview) -> tuple[int, memoryview]:
        """Sends a request; returns the status and the body, in ``room`` if it fits there.

        Memory that is new takes as long as receiving: a millisecond for megabytes. Raises OSError as ``send`` does.
        """
        return self._exchange(request, lambda connection: self._receive_into(connection, room))

    def _exchange(self, request: bytes | bytearray, receive: Callable[[socket.socket], _Answer]) -> _Answer:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_TIMEOUT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(request)
            return receive(self._socket)
        except OSError:
            self.close()
            raise

    def _receive(self, connection: socket.socket, keep_body: bool) -> tuple[int, bytes | bytearray]:
        status, whole, body = self._receive_head(connection)
        if not keep_body and status == 200:
            have = len(body)
            while have < whole:
                have += self._take(connection, self._buffer[: whole - have])
            return status, b""
        kept = bytearray(whole)
        self._fill(connection, memoryview(kept), body)
        return status, kept

    def _receive_into(self, connection: socket.socket, room: memoryview) -> tuple[int, memoryview]:
        status, whole, body = self._receive_head(connection)
        kept = room[:whole] if whole <= len(room) else memoryview(bytearray(whole))
        self._fill(connection, kept, body)
        return status, kept

    @staticmethod
    def _receive_head(connection: socket.socket) -> tuple[int, int, bytes]:
        """The status, the length of the body, and the part of it that came with the head."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(_CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        # With the start of the line: Triton also sends an Inference-Header-Content-Length.
        length = head.lower().split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0]
        return int(head[9:12]), int(length), body

    def _fill(self, connection: socket.socket, kept: memoryview, begun: bytes) -> None:
        """Receives the rest of a body where it stays: answers of megabytes are not copied."""
        have = len(begun)
        kept[:have] = begun
        while have < len(kept):
            have += self._take(connection, kept[have:])

    @staticmethod
    def _take(connection: socket.socket, target: memoryview) -> int:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("the server closed the connection")
        return count

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def run(connection: Connection, repeated: dict[str, Any], number: int, times: dict[str, float]) -> dict[str, Any]:
    """Sends requests from ``begin`` to ``stop``; counts the responses between ``start`` and ``stop``."""
    request = bytearray(base64.b64decode(repeated["request"]))
    at, digits = repeated["number_at"], repeated["digits"]
    answered: list[float] = []
    failed: dict[str, list[Any]] = {}
    time.sleep(max(0.0, times["begin"] - time.monotonic()))
    cpu = time.process_time()
    sent = 0
    while (begun := time.monotonic()) < times["stop"]:
        if digits:
            number += 1
            request[at : at + digits] = b"%0*d" % (digits, number)
        sent += 1
        try:
            status, body = connection.send(request)
        except OSError as error:
            status, body = 0, str(error).encode()
        ended = time.monotonic()
        inside = times["start"] <= ended <= times["stop"]
        if status == 200:
            if inside:
                answered.append(ended - begun)
            continue
        if inside:
            failed.setdefault(str(status), [0, body.decode(errors="replace")[:300]])[0] += 1
        if status in (0, _REFUSED):
            time.sleep(_REFUSED_SECONDS)
    spent = (time.process_time() - cpu) / max(1, sent)
    return {"answered": answered, "failed": failed, "cpu_seconds": spent, "number": number}


def main() -> None:
    repeated = json.loads(sys.stdin.readline())
    connection = Connection(repeated["host"], repeated["port"])
    number = repeated["first_number"]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        outcome = run(connection, repeated, number, json.loads(line))
        number = outcome["number"]
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()
    connection.close()


if __name__ == "__main__":
    main()
