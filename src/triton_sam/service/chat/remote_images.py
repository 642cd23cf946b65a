"""Images that a request names by address. A stranger chooses the address: nothing private may be reached through it.

The host's addresses are looked up once, each must be public, and exactly these are connected to: a name that means
something else a moment later changes nothing. Proxies of the environment are not used, because a proxy looks the name
up itself. Nor may those addresses slow anything else down: look-ups have threads of their own, and fetches are few.
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
_PATIENCE = 5.0
_AT_A_TIME = 4
_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PART = 64 * 1024
_MEND = "send the image itself as data:image/png;base64,..."
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": f"triton-sam/{__version__}"}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: (host, port) -> its addresses as text.
LookUp = Callable[[str, int], Awaitable[Sequence[str]]]

#: Besides what Python knows to be no global address.
_PRIVATE_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",  # carriers' own, and some clouds' metadata
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
            "2001::/23",  # protocols; Teredo is among them
            "2001:db8::/32",
            "2002::/16",  # 6to4: an IPv4 address in disguise, of a kind that nobody serves images from
            "3fff::/20",
        ),
    )
)
#: With an IPv4 address at the end. Where a network has IPv6 only, every other host has such an address.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
_WORD = 0xFFFF_FFFF


def is_public(text: str) -> bool:
    """Whether an address is one that the whole internet may reach; False for what is no address."""
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, ipaddress.IPv4Address) else _is_public_v6(address)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    odd = address.is_private or address.is_multicast or address.is_reserved or address.is_link_local
    return address.is_global and not odd and not any(address in network for network in _PRIVATE_V4)


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    last = ipaddress.IPv4Address(int(address) & _WORD)
    if address.ipv4_mapped is not None or address in _NAT64:
        return _is_public_v4(last)
    if (int(address) >> 32) & _WORD in _ISATAP and not _is_public_v4(last):
        return False
    is_apart = any(address in network for network in _PRIVATE_V6)
    return address in _GLOBAL_V6 and address.is_global and not address.is_multicast and not is_apart


#: A name whose servers never answer holds its thread long after everybody has stopped waiting.
_LOOK_UPS = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="look-up")


async def look_up(host: str, port: int) -> Sequence[str]:
    """As the machine does it, but never on the threads that others need; OSError where there is no such host."""

    def ask() -> list[Any]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, ask)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class RemoteImages:
    """Fetches images, a few at a time.

    Attributes:
        max_bytes: of an image file.
        seconds: for everything, redirects among it.
        patience: seconds that may pass before a fetch has its turn.
        look_up: in place of the machine's own, for tests.
        permits: whether an address may be connected to; for tests.
        ports: those that may be connected to.
        tls: None checks certificates as the machine does.
    """

    max_bytes: int
    seconds: float = _SECONDS
    patience: float = _PATIENCE
    look_up: LookUp = look_up
    permits: Callable[[str], bool] = is_public
    ports: frozenset[int] = frozenset({443})
    tls: ssl.SSLContext | None = None
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_A_TIME), init=False)

    async def fetch(self, url: str) -> bytes:
        """The file at an https address; InvalidInput or TooLarge where it cannot be had, QueueFull where many wait."""
        async with self._place():
            return await self._fetch(url)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        with anyio.move_on_after(self.patience) as patience:
            await self._places.acquire()
        if patience.cancelled_caught:
            raise QueueFull(f"{_AT_A_TIME} images are being fetched already: try again in a moment, or {_MEND}")
        try:
            yield
        finally:
            self._places.release()

    async def _fetch(self, url: str) -> bytes:
        try:
            with anyio.fail_after(self.seconds):
                return await self._follow(url)
        except TimeoutError:
            raise InvalidInput(f"the image did not come within {self.seconds:g} s: {_MEND}") from None
        except TritonSamError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The reason is not told: it would tell a stranger what there is.
            log.info("an image could not be fetched: %s", type(error).__name__)
            raise InvalidInput(f"the image cannot be fetched from its host: {_MEND}") from None

    async def _follow(self, address: str) -> bytes:
        url = self._checked(address, None)
        for _ in range(_MOST_REDIRECTS + 1):
            found = await self._get(url)
            if isinstance(found, bytes):
                return found
            url = self._checked(found, url)
        raise InvalidInput(f"the image's address leads on more than {_MOST_REDIRECTS} times: {_MEND}")

    def _checked(self, address: str, base: URL | None) -> URL:
        """The one reading of an address, which both the look-up and the request get."""
        try:
            if not address.isprintable() or "\\" in address or " " in address:
                raise ValueError
            url = URL(address) if base is None else base.join(URL(address))
            scheme, host, port = url.scheme, url.raw_host, url.port
        except ValueError:
            raise InvalidInput(f"the image's address cannot be read: {_MEND}") from None
        if scheme != "https":
            raise InvalidInput(f"an image is fetched over https only, not {scheme[:20] or 'nothing'}: {_MEND}")
        if url.raw_user is not None or url.raw_password is not None:
            raise InvalidInput(f"the image's address has a user name or a password in it: {_MEND}")
        if not host:
            raise InvalidInput(f"the image's address has no host: {_MEND}")
        if port not in self.ports:
            allowed = ", ".join(map(str, sorted(self.ports)))
            raise InvalidInput(f"an image is fetched from port {allowed} only: {_MEND}")
        return url.with_fragment(None)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """All of a host's addresses, if all of them are public. What there is otherwise is not told."""
        try:
            if _is_number(host):  # such a host is never looked up by whoever connects
                found: Sequence[str] = [str(ipaddress.ip_address(host))]
            else:
                found = await self.look_up(host, port)
        except (OSError, ValueError):
            found = []
        if not found or not all(self.permits(address) for address in found):
            raise InvalidInput(f"the image's host has no public address: {_MEND}")
        return list(found)

    async def _get(self, url: URL) -> bytes | str:
        """The file, or the address that it leads to."""
        port = url.port or 0
        resolver = _Known(str(url.raw_host), await self._addresses(str(url.raw_host), port))
        # A connection for each request: nothing may come over one that was opened for another host.
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
                raise InvalidInput(f"the image's host answered with status {response.status}: {_MEND}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise InvalidInput(f"the image's host sends it compressed: {_MEND}")
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        too_large = TooLarge(f"the image has more than {self.max_bytes:,} bytes: send a smaller one")
        if (response.content_length or 0) > self.max_bytes:
            raise too_large
        data = bytearray()
        async for part in response.content.iter_chunked(_PART):
            data += part
            if len(data) > self.max_bytes:
                raise too_large
        return bytes(data)


def _is_number(host: str) -> bool:
    """Whether a host is written as an address, or nearly: ``127.1`` and ``2130706433`` mean one to some systems."""
    return ":" in host or host.replace(".", "").isdigit()


class _Known(AbstractResolver):
    """Answers with what was looked up and checked before, for one host."""

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
