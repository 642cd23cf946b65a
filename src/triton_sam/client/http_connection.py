"""One kept connection to a server's HTTP port, with the standard library alone.

tritonclient's own goes through gevent, which costs a client more than half a millisecond for a click and leaves a loop
behind in every thread. Requests and answers are still written and read by tritonclient.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from triton_sam.client.wire import Address
from triton_sam.errors import InvalidInput

_CONNECT_SECONDS = 10.0
#: Smaller bodies leave with the head, in one packet.
_SMALL_BODY = 2**16
#: What a kept connection says that the server has closed meanwhile, before a byte of an answer.
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
class HttpAnswer:
    """Status, headers (look-ups ignore case) and the whole body."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class HttpConnection:
    """Belongs to one thread at a time; connects when it is first needed, and again after :meth:`close`."""

    def __init__(self, address: Address, timeout: float) -> None:
        """
        Args:
            timeout: seconds without a byte after which TimeoutError is raised.
        """
        self._socket: socket.socket | None = None
        parts = urlsplit(f"//{address.target}")
        self._host, self._port = parts.hostname or "", parts.port or (443 if address.tls else 80)
        self._name = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path
        self._tls = address.tls
        self._timeout = timeout

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpAnswer:
        """Sends a request and reads its answer; raises OSError, ssl.SSLError or http.client.HTTPException."""
        head = self._head(method, path, headers, len(body))
        if self._says_something():
            self.close()
        reused = self._socket is not None
        try:
            return self._exchange(method, head, body)
        except _STALE:
            self.close()
            if not reused:
                raise
        except BaseException:
            self.close()  # what is left in it belongs to nobody
            raise
        try:
            return self._exchange(method, head, body)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _says_something(self) -> bool:
        """Whether a kept connection was closed, or told something unasked; TLS tells things of its own."""
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
            raise InvalidInput("a header or the address has a line break: take it out")
        try:
            return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidInput("a header or the address has letters that HTTP does not know: use plain ones") from None

    def _exchange(self, method: str, head: bytes, body: bytes) -> HttpAnswer:
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
            cut_off = error  # a server that refuses a large body says why and does not read on
        response = http.client.HTTPResponse(self._socket, method=method)
        try:
            answer = self._read(response)
        except _STALE:
            raise cut_off or http.client.RemoteDisconnected("the server closed the connection") from None
        finally:
            response.close()
        if response.will_close or cut_off is not None:
            self.close()
        return answer

    def _read(self, response: http.client.HTTPResponse) -> HttpAnswer:
        response.begin()
        if response.status < _FINAL:
            raise http.client.HTTPException(f"status {response.status} before the answer is not understood here")
        try:
            return HttpAnswer(response.status, response.headers, response.read())
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise http.client.HTTPException(f"the answer broke off ({error})") from None

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), min(self._timeout, _CONNECT_SECONDS))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready = _tls_context().wrap_socket(plain, server_hostname=self._host) if self._tls else plain
            ready.settimeout(self._timeout)
        except BaseException:
            plain.close()
            raise
        return ready


def _tls_context() -> ssl.SSLContext:
    """Trusts whom this machine trusts, and the usual authorities where it has no list of its own."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
