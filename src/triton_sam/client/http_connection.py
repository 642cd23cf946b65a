"""One keep-alive HTTP connection, with the standard library alone.

tritonclient's own connection uses gevent, which costs more than half a millisecond per click and leaves an event loop
in every thread. tritonclient still writes the requests and reads the responses.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from triton_sam.client.wire import Address
from triton_sam.errors import InvalidInput

_CONNECT_SECONDS = 10.0
#: Smaller bodies are sent together with the head, in one packet.
_SMALL_BODY = 2**16
#: Raised if the server closed a kept connection before it sent a byte of the response.
_STALE = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ConnectionAbortedError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)
_FINAL = 200


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response: status, headers (case-insensitive) and the whole body.

    Attributes:
        sent_again: whether the request was sent twice, because the kept connection ended without an answer.
    """

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    sent_again: bool = False


class HttpConnection:
    """A connection for one thread at a time. It connects when it is first used, and again after :meth:`close`."""

    def __init__(self, address: Address, timeout: float) -> None:
        """
        Args:
            timeout: TimeoutError is raised after so many seconds without a byte.
        """
        self._socket: socket.socket | None = None
        parts = urlsplit(f"//{address.target}")
        self._host, self._port = parts.hostname or "", parts.port or (443 if address.tls else 80)
        self._name = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path
        self._tls = address.tls
        self._timeout = timeout

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        """Sends a request and reads the response; raises OSError, ssl.SSLError or http.client.HTTPException."""
        head = self._head(method, path, headers, len(body))
        if self._is_stale():
            self.close()
        reused = self._socket is not None
        try:
            return self._exchange(method, head, body)
        except _STALE:
            self.close()
            if not reused:
                raise
        except BaseException:
            self.close()  # unread bytes must not be taken for the next response
            raise
        try:
            return replace(self._exchange(method, head, body), sent_again=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _is_stale(self) -> bool:
        """Whether the server closed a kept connection or sent unexpected bytes; unknown (False) with TLS."""
        if self._socket is None or self._tls:
            return False
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(self._timeout)
        return True

    def __del__(self) -> None:
        self.close()

    def _head(self, method: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
        own = {"host": self._name} | ({"content-length": str(size)} if method != "GET" else {})
        given = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        own = {name: value for name, value in own.items() if name not in {other.lower() for other in given}}
        lines = [f"{method} {self._prefix}/{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (own | given).items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise InvalidInput("a header or the address contains a line break: remove it")
        try:
            return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidInput("a header or the address contains characters outside Latin-1: use plain ones") from None

    def _exchange(self, method: str, head: bytes, body: bytes) -> HttpResponse:
        if self._socket is None:
            self._socket = self._connect()
        cut_off: OSError | None = None
        try:
            if len(body) <= _SMALL_BODY:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            cut_off = error  # a server that rejects a large body responds without reading all of it
        response = http.client.HTTPResponse(self._socket, method=method)
        try:
            received = self._read(response)
        except _STALE:
            raise cut_off or http.client.RemoteDisconnected("the server closed the connection") from None
        finally:
            response.close()
        if response.will_close or cut_off is not None:
            self.close()
        return received

    def _read(self, response: http.client.HTTPResponse) -> HttpResponse:
        response.begin()
        if response.status < _FINAL:
            raise http.client.HTTPException(f"informational status {response.status} is not supported")
        try:
            return HttpResponse(response.status, response.headers, response.read())
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise http.client.HTTPException(f"the response ended early ({error})") from None

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), min(self._timeout, _CONNECT_SECONDS))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready = tls_context().wrap_socket(plain, server_hostname=self._host) if self._tls else plain
            ready.settimeout(self._timeout)
        except BaseException:
            plain.close()
            raise
        return ready


class ThreadConnections:
    """A connection for each thread that uses it."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._local = threading.local()

    def get(self) -> HttpConnection:
        """The calling thread's connection."""
        connection: HttpConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = HttpConnection(self._address, self._timeout)
        return connection

    def close(self) -> None:
        """Closes this thread's connection; those of other threads may be in use, and close when their threads end."""
        self.get().close()


def tls_context() -> ssl.SSLContext:
    """Trusts this machine's certificate authorities, or certifi's if it has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
