"""Fetches images by https URL, protected against server-side request forgery (SSRF).

The host name is resolved once, every address must be public, and only these addresses are connected to, so DNS
rebinding has no effect. Proxies of the environment are not used, because a proxy resolves the name itself. Slow hosts
must not affect other requests: DNS lookups have threads of their own, and few fetches run at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from triton_sam import __version__
from triton_sam.errors import InvalidInput, QueueFull, TooLarge, TritonSamError

log = logging.getLogger(__name__)

_SECONDS = 10.0
_WAIT_SECONDS = 5.0
_MAX_CONCURRENT = 4
_MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 * 1024
_FIX = "send the image itself as data:image/png;base64,..."
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": f"triton-sam/{__version__}"}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: (host, port) -> the host's IP addresses as text.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: In addition to what the ipaddress module knows.
_PRIVATE_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT, and some clouds' metadata
            "168.63.129.16/32",  # Azure's metadata
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_PRIVATE_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # IETF protocols, among them Teredo
            "2001:db8::/32",
            "2002::/16",  # 6to4: it embeds an IPv4 address, and no web server uses it
            "3fff::/20",
        ),
    )
)
#: It embeds an IPv4 address. In an IPv6-only network, IPv4 hosts have such addresses.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
_WORD = 0xFFFF_FFFF


def is_public(text: str) -> bool:
    """Whether a text is a public IP address; False if it is not an IP address."""
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, ipaddress.IPv4Address) else _is_public_v6(address)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    special = address.is_private or address.is_multicast or address.is_reserved or address.is_link_local
    return address.is_global and not special and not any(address in network for network in _PRIVATE_V4)


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    last = ipaddress.IPv4Address(int(address) & _WORD)
    if address.ipv4_mapped is not None or address in _NAT64:
        return _is_public_v4(last)
    if (int(address) >> 32) & _WORD in _ISATAP and not _is_public_v4(last):
        return False
    is_private = any(address in network for network in _PRIVATE_V6)
    return address in _GLOBAL_V6 and address.is_global and not address.is_multicast and not is_private


#: A lookup whose DNS servers never respond blocks its thread long after the request has timed out.
_RESOLVER_THREADS = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="resolve")


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolves a host with the system's resolver, on separate threads; raises OSError if there is no such host."""

    def query() -> list[Any]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    found = await asyncio.get_running_loop().run_in_executor(_RESOLVER_THREADS, query)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class RemoteImages:
    """Fetches images, a few at a time.

    Attributes:
        max_bytes: of an image file.
        seconds: time limit of a fetch, redirects included.
        wait_seconds: how long a fetch may wait for a free slot.
        resolve: replaces the system's resolver, for tests.
        permits: whether an IP address may be connected to; for tests.
        ports: the ports that may be connected to.
        tls: None verifies certificates against the system's.
    """

    max_bytes: int
    seconds: float = _SECONDS
    wait_seconds: float = _WAIT_SECONDS
    resolve: Resolve = resolve
    permits: Callable[[str], bool] = is_public
    ports: frozenset[int] = frozenset({443})
    tls: ssl.SSLContext | None = None
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    async def fetch(self, url: str) -> bytes:
        """The file at an https URL. InvalidInput or TooLarge if it cannot be fetched; QueueFull if no slot is free."""
        async with self._slot():
            return await self._fetch(url)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        with anyio.move_on_after(self.wait_seconds) as wait:
            await self._slots.acquire()
        if wait.cancelled_caught:
            raise QueueFull(f"{_MAX_CONCURRENT} images are already being fetched: try again in a moment, or {_FIX}")
        try:
            yield
        finally:
            self._slots.release()

    async def _fetch(self, url: str) -> bytes:
        try:
            with anyio.fail_after(self.seconds):
                return await self._follow(url)
        except TimeoutError:
            raise InvalidInput(f"the image was not received within {self.seconds:g} s: {_FIX}") from None
        except TritonSamError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The reason is not returned: it would reveal what exists in the network.
            log.info("fetching an image failed: %s", type(error).__name__)
            raise InvalidInput(f"the image cannot be fetched from its host: {_FIX}") from None

    async def _follow(self, location: str) -> bytes:
        url = self._checked(location, None)
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._get(url)
            if isinstance(found, bytes):
                return found
            url = self._checked(found, url)
        raise InvalidInput(f"the image's URL redirects more than {_MAX_REDIRECTS} times: {_FIX}")

    def _checked(self, location: str, base: URL | None) -> URL:
        """The parsed and validated URL, which both the DNS lookup and the request use."""
        try:
            if not location.isprintable() or "\\" in location or " " in location:
                raise ValueError
            url = URL(location) if base is None else base.join(URL(location))
            scheme, host, port = url.scheme, url.raw_host, url.port
        except ValueError:
            raise InvalidInput(f"the image's URL cannot be parsed: {_FIX}") from None
        if scheme != "https":
            raise InvalidInput(f"images are fetched over https only, not {scheme[:20] or 'nothing'}: {_FIX}")
        if url.raw_user is not None or url.raw_password is not None:
            raise InvalidInput(f"the image's URL has a user name or a password: {_FIX}")
        if not host:
            raise InvalidInput(f"the image's URL has no host: {_FIX}")
        if port not in self.ports:
            allowed = ", ".join(map(str, sorted(self.ports)))
            raise InvalidInput(f"images are fetched from port {allowed} only: {_FIX}")
        return url.with_fragment(None)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """All IP addresses of a host; raises InvalidInput unless all are public, without revealing them."""
        try:
            if _is_number(host):  # aiohttp does not resolve such a host
                found: Sequence[str] = [str(ipaddress.ip_address(host))]
            else:
                found = await self.resolve(host, port)
        except (OSError, ValueError):
            found = []
        if not found or not all(self.permits(address) for address in found):
            raise InvalidInput(f"the image's host has no public address: {_FIX}")
        return list(found)

    async def _get(self, url: URL) -> bytes | str:
        """The file, or the location of a redirect."""
        port = url.port or 0
        resolver = _PinnedResolver(str(url.raw_host), await self._addresses(str(url.raw_host), port))
        # A new connection for each request: one that was opened for another host must not be reused.
        connector = aiohttp.TCPConnector(
            resolver=resolver, use_dns_cache=False, force_close=True, ssl=True if self.tls is None else self.tls
        )
        async with (
            aiohttp.ClientSession(
                connector=connector, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            session.get(url, headers=_HEADERS, allow_redirects=False) as response,
        ):
            if response.status in _REDIRECTS:
                return response.headers.get("Location", "")
            if response.status != HTTPStatus.OK:
                raise InvalidInput(f"the image's host responded with status {response.status}: {_FIX}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise InvalidInput(f"the image's host sends it with a Content-Encoding: {_FIX}")
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        too_large = TooLarge(f"the image has more than {self.max_bytes:,} bytes: send a smaller one")
        if (response.content_length or 0) > self.max_bytes:
            raise too_large
        data = bytearray()
        async for part in response.content.iter_chunked(_CHUNK_BYTES):
            data += part
            if len(data) > self.max_bytes:
                raise too_large
        return bytes(data)


def _is_number(host: str) -> bool:
    """Whether a host is an IP address or may be parsed as one: some systems accept ``127.1`` and ``2130706433``."""
    return ":" in host or host.replace(".", "").isdigit()


class _PinnedResolver(AbstractResolver):
    """Returns the addresses that were resolved and checked before, for one host."""

    def __init__(self, host: str, addresses: Sequence[str]) -> None:
        self._host = host
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[ResolveResult]:
        if host.rstrip(".") != self._host.rstrip("."):
            raise OSError(f"{host!r} was not checked")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass
