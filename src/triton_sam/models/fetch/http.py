"""Plain HTTP: downloads that can be resumed, and pages.

No error contains a password: addresses are printed without the part before their ``@``.
"""

from __future__ import annotations

import errno
import http.client
import queue
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from triton_sam.errors import InterruptedDownload, WeightsError

#: Called with (bytes so far, bytes in all or None).
Progress = Callable[[int, int | None], None]

CHUNK = 1024 * 1024
#: Timeout of a connection; the pause between two chunks may be longer.
CONNECT_SECONDS = 5.0
_STALL_SECONDS = 60.0
_TRIES = 3
_PAGE_BYTES = 64 * 1024 * 1024
DISK_FULL = "the disk is full: make room or set TRITON_SAM_HOME to another disk"


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and connection settings for a host.

    Attributes:
        authorization: the header's value; not sent to another host after a redirect.
        certificates: a file of certificate authorities in place of the system's.
        proxy: in place of the environment's.
    """

    authorization: str | None = field(default=None, repr=False)
    certificates: str | None = None
    proxy: str | None = field(default=None, repr=False)


ANYONE = Access()


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page, its address after redirects, and its media type without parameters."""

    url: str
    kind: str
    content: bytes


def download(url: str, target: Path, progress: Progress, access: Access = ANYONE) -> None:
    """GET ``url`` into ``target``, resuming an earlier try; retries after a broken connection."""
    for tries_left in reversed(range(_TRIES)):
        before = _size(target)
        try:
            _download_once(url, target, progress, access)
            return
        except InterruptedDownload:
            if not tries_left or _size(target) <= before:
                raise


def read_page(url: str, access: Access, accept: str) -> Page:
    """Reads a page; WeightsError if it is larger than a package index's page can be."""
    with _translated_errors(), _open(url, {"Accept": accept}, access) as response:
        content = response.read(_PAGE_BYTES + 1)
        if len(content) > _PAGE_BYTES:
            raise WeightsError("the page is too large")
        return Page(response.url, response.headers.get_content_type(), content)


def check_reachable(url: str, access: Access = ANYONE) -> None:
    """Opens and closes a connection to the host, through the proxy if there is one, within the short timeout."""
    deadline = time.monotonic() + CONNECT_SECONDS
    scheme, host, port = _origin(_http_address(url))
    proxy = access.proxy or urllib.request.getproxies().get(scheme)
    with _translated_errors():
        if not proxy or urllib.request.proxy_bypass(host):
            _connect(host, port, deadline)
            return
        proxy, authorization = split_credentials(_http_address(proxy if "://" in proxy else f"http://{proxy}"))
        proxy_scheme, proxy_host, proxy_port = _origin(proxy)
        _connect(proxy_host, proxy_port, deadline)
        if (scheme, proxy_scheme) == ("https", "http"):
            seconds = max(deadline - time.monotonic(), 0.1)
            with closing(http.client.HTTPConnection(proxy_host, proxy_port, timeout=seconds)) as tunnel:
                tunnel.set_tunnel(host, port, {"Proxy-Authorization": authorization} if authorization else {})
                tunnel.connect()


def split_credentials(url: str) -> tuple[str, str | None]:
    """An address without its user and password, and those as the value of an Authorization header."""
    parts = urlsplit(url)
    userinfo, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return url, None
    user, _, password = userinfo.partition(":")
    token = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), f"Basic {token}"


def redact(text: str) -> str:
    """``text`` without users and passwords in its addresses."""
    return re.sub(r"//\S*@", "//", text)


def is_disk_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def _download_once(url: str, target: Path, progress: Progress, access: Access) -> None:
    """One request; starts again from the beginning if the server ignores or refuses the range."""
    have = _size(target)
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with _translated_errors() as started, _open(url, headers, access) as response:
            resumed = response.status == 206
            length = response.headers.get("Content-Length")
            done = have if resumed else 0
            total = done + int(length) if length else None
            with target.open("ab" if resumed else "wb") as file:
                while chunk := response.read(CHUNK):
                    started.set()
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, total)
    except _RangeRefused as refused:
        if refused.whole == have:
            progress(have, have)
            return
        target.unlink()
        _download_once(url, target, progress, access)
        return
    if total is not None and done < total:
        raise InterruptedDownload(f"the connection ended after {done:,} of {total:,} bytes")


class _RangeRefused(Exception):
    """The server has nothing after the bytes that are here; ``whole`` is the file's size, if the server names it."""

    def __init__(self, whole: int | None) -> None:
        self.whole = whole


def _open(url: str, headers: dict[str, str], access: Access) -> Any:
    check_reachable(url, access)
    request = urllib.request.Request(url, headers={"User-Agent": "triton-sam", **headers})
    if access.authorization:
        request.add_header("Authorization", access.authorization)
    handlers: list[urllib.request.BaseHandler] = [_SameHostAuthorization(), _QuickConnect(access.certificates)]
    if access.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": access.proxy, "https": access.proxy}))
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=_STALL_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and request.has_header("Range"):
            whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
            raise _RangeRefused(int(whole[1]) if whole else None) from None
        raise WeightsError(redact(f"the server answered {error.code} {error.reason}")) from None


@contextmanager
def _translated_errors() -> Iterator[threading.Event]:
    """Network errors as one sentence; the event is set if data had arrived before."""
    started = threading.Event()
    try:
        yield started
    except (OSError, http.client.HTTPException, ValueError) as error:
        kind = InterruptedDownload if started.is_set() else WeightsError
        if is_disk_full(error):
            raise kind(DISK_FULL) from None
        raise kind(redact(f"the connection failed ({getattr(error, 'reason', None) or error})")) from None


class _SameHostAuthorization(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and sends the password only to the original host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        _http_address(newurl)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if request is not None and not same_origin(req.full_url, newurl):
            request.remove_header("Authorization")
        return request


class _QuickConnect(urllib.request.HTTPSHandler):
    """TLS with the short timeout for its handshake and for a proxy's tunnel before it."""

    def __init__(self, certificates: str | None) -> None:
        self._trust = ssl.create_default_context(cafile=certificates)
        super().__init__(context=self._trust)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_QuickConnection, req, context=self._trust)


class _QuickConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        self.timeout = CONNECT_SECONDS
        super().connect()
        self.sock.settimeout(_STALL_SECONDS)


def _connect(host: str, port: int, deadline: float) -> None:
    addresses = _resolve(host, port, deadline)
    seconds = max(deadline - time.monotonic(), 0.1) / len(addresses)
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as attempt:
            attempt.settimeout(seconds)
            try:
                attempt.connect(address)
                return
            except OSError as error:
                reason = error
    raise reason


def _resolve(host: str, port: int, deadline: float) -> list[tuple[Any, ...]]:
    """The host's addresses; the system's resolver has no timeout, so a thread waits for it."""
    answers: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(OSError(str(error)))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=max(deadline - time.monotonic(), 0.1))
    except queue.Empty:
        raise TimeoutError(f"no address of {host} was found in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _http_address(url: str) -> str:
    """The address itself; WeightsError if it is not http or https."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise WeightsError(f"{redact(url)} is not an http or https address")
    return url


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
