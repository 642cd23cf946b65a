"""Bytes on the wire, of whatever protocol: a forwarder between a client and a server that counts."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
from types import TracebackType

from triton_sam.client.wire import Address

_CHUNK = 2**18


class WireCounter:
    """Listens on this machine and forwards to a server; ``count`` grows by what goes either way.

    Headers, frames and window updates are in it, what TCP and IP add is not. Nothing is timed through it.
    """

    def __init__(self, url: str) -> None:
        address = Address.parse(url)
        parts = urllib.parse.urlsplit(f"//{address.target}")
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        self.count = 0
        #: The server's address by this way.
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
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                with self._lock:
                    self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                with self._lock:
                    self.count += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
