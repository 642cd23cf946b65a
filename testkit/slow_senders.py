"""Slow clients: connections that send a request's body byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator

_PAUSE_SECONDS = 0.1
_HEAD = b"POST /v1/segment HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@contextlib.contextmanager
def slow_senders(url: str, count: int) -> Iterator[None]:
    """Keeps ``count`` clients connected that send a large body, ten bytes a second each."""
    parts = urllib.parse.urlsplit(url)
    stop = threading.Event()
    sockets = [socket.create_connection((parts.hostname, parts.port or 80), timeout=10) for _ in range(count)]

    def trickle() -> None:
        for connection in sockets:
            connection.sendall(_HEAD)
        while not stop.wait(_PAUSE_SECONDS):
            for connection in sockets:
                with contextlib.suppress(OSError):  # the service may have closed it
                    connection.send(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    time.sleep(5 * _PAUSE_SECONDS)  # until each has begun
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for connection in sockets:
            connection.close()
