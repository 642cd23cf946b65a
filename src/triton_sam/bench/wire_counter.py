"""Bytes on the wire for any protocol: a counting proxy between a client and a server."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
from collections.abc import Callable
from types import TracebackType

from triton_sam.client.wire import Address

_CHUNK = 2**18
#: How often a call is repeated to take the mean of its bytes.
COUNTED_CALLS = 5


class WireCounter:
    """Listens on this machine and forwards to a server; ``count`` is the number of bytes in both directions.

    It includes headers, frames and window updates, but not the overhead of TCP and IP. Not for timing.
    """

    def __init__(self, url: str) -> None:
        address = Address.parse(url)
        parts = urllib.parse.urlsplit(f"//{address.target}")
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        self.count = 0
        #: The proxy's address.
        self.url = f"{'grpc' if address.grpc else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> WireCounter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                with self._lock:
                    self.count += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def bytes_per_call(counter: WireCounter, call: Callable[[], object]) -> float:
    """Mean bytes of a call that goes through the counter."""
    before = counter.count
    for _ in range(COUNTED_CALLS):
        call()
    return (counter.count - before) / COUNTED_CALLS
