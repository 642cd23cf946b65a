from __future__ import annotations

import asyncio
import contextlib
import http.server
import ipaddress
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.errors import InvalidInput, QueueFull, TooLarge
from triton_sam.service.chat.remote_images import RemoteImages, is_public, resolve

PRIVATE = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "168.63.129.16/32",
]
PRIVATE_V6 = [
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/32",
    "2001:2::/48",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]
private_v4 = st.sampled_from(PRIVATE).flatmap(lambda network: st.ip_addresses(network=network))
private_v6 = st.sampled_from(PRIVATE_V6).flatmap(lambda network: st.ip_addresses(network=network))


def wrapped(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """The same host in the disguises of IPv6."""
    number = int(address)
    return [
        ipaddress.IPv6Address(value)
        for value in (
            0xFFFF << 32 | number,  # mapped
            number,  # compatible
            0x0064_FF9B << 96 | number,  # NAT64
            0x2002 << 112 | number << 80 | 1,  # 6to4
            0x2001_0000 << 96 | number << 64 | 1,  # Teredo, the server
            0x2001_0000 << 96 | 0x0808_0808 << 64 | number ^ 0xFFFF_FFFF,  # Teredo, the client
            0x2606_4700 << 96 | 0x0000_5EFE << 32 | number,  # ISATAP
        )
    ]


@given(private_v4)
def test_private_addresses_and_their_disguises(address: ipaddress.IPv4Address) -> None:
    assert not is_public(str(address))
    for disguise in wrapped(address):
        assert not is_public(str(disguise))
        assert not is_public(disguise.exploded)


@given(private_v6)
def test_private_addresses_of_ipv6(address: ipaddress.IPv6Address) -> None:
    assert not is_public(str(address))


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_public(address: Any) -> None:
    if is_public(str(address)):
        inner = getattr(address, "ipv4_mapped", None) or address
        assert inner.is_global or address in ipaddress.ip_network("64:ff9b::/96")
        assert not inner.is_multicast


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "172.32.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("odd", ["", "localhost", "127.1", "2130706433", "0x7f.1", "8.8.8.8%eth0", "2606:4700::1%eth0"])
def test_what_is_no_address(odd: str) -> None:
    assert not is_public(odd)


def fetch(url: str, **options: Any) -> bytes:
    return asyncio.run(RemoteImages(**{"max_bytes": 1000, "seconds": 5.0} | options).fetch(url))


def names(*addresses: str) -> Callable[[str, int], Any]:
    async def found(host: str, port: int) -> Sequence[str]:
        return addresses

    return found


async def never(host: str, port: int) -> Sequence[str]:
    pytest.fail(f"{host} was looked up")


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/a.png",
        "ftp://a.example/a.png",
        "file:///etc/passwd",
        "https:///a.png",
        "https://",
        "https://me:secret@a.example/a.png",
        "https://me@a.example/a.png",
        "https://a.example:22/a.png",
        "https://a.example:99999/a.png",
        "https://a.example\\@b.example/",
        "https://a.example/a b",
        "https://a.example/\r\nHost: b",
        "https://[::1/",
        "https://127.0.0.1/a.png",
        "https://127.1/a.png",
        "https://2130706433/a.png",
        "https://[::1]/a.png",
        "https://[::ffff:10.0.0.1]/a.png",
        "https://[fe80::1%25eth0]/a.png",
        "https://169.254.169.254/latest/meta-data",
        "https://１２７。0。0。1/a.png",  # noqa: RUF001
    ],
)
def test_addresses_that_are_refused_without_asking_anybody(url: str) -> None:
    with pytest.raises(InvalidInput, match="data:image/png;base64"):
        fetch(url, resolve=never)


@pytest.mark.parametrize("found", [[], ["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::1"], ["fe80::1%eth0"]])
def test_names_with_an_address_that_is_not_public(found: list[str]) -> None:
    with pytest.raises(InvalidInput, match="no public address"):
        fetch("https://a.example/a.png", resolve=names(*found))


def test_localhost_as_the_machine_knows_it() -> None:
    assert {"127.0.0.1", "::1"} & set(asyncio.run(resolve("localhost", 443)))
    with pytest.raises(InvalidInput, match="no public address"):
        fetch("https://localhost/a.png")


def test_a_look_up_that_hangs() -> None:
    async def hangs(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(InvalidInput, match=r"within 0\.05 s"):
        fetch("https://a.example/a.png", resolve=hangs, seconds=0.05)


def test_look_ups_that_hang_keep_no_threads_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    asked: list[str] = []

    def hangs(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        asked.append(host)
        assert answered.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", port))]

    async def run() -> None:
        waiting = [asyncio.create_task(resolve(f"{index}.example", 443)) for index in range(50)]
        await asyncio.sleep(0)  # all of them have begun
        try:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: len(asked)), 10) <= 4
        finally:
            answered.set()
        assert await asyncio.gather(*waiting) == [["8.8.8.8"]] * 50

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    asyncio.run(run())


def test_fetches_at_a_time() -> None:
    async def run() -> None:
        begun: asyncio.Queue[str] = asyncio.Queue()
        answered = asyncio.Event()

        async def found(host: str, port: int) -> Sequence[str]:
            begun.put_nowait(host)
            await answered.wait()
            return []

        images = RemoteImages(1000, wait_seconds=0.05, resolve=found)
        fetching = [asyncio.create_task(images.fetch(f"https://{index}.example/a.png")) for index in range(4)]
        for _ in fetching:
            await begun.get()
        with pytest.raises(QueueFull, match=r"4 images .* try again in a moment"):
            await images.fetch("https://a.example/a.png")
        assert begun.empty()
        fetching.pop().cancel()  # a cancelled fetch frees its slot
        fetching.append(asyncio.create_task(images.fetch("https://b.example/a.png")))
        assert await begun.get() == "b.example"
        answered.set()
        refusals = await asyncio.gather(*fetching, return_exceptions=True)
        assert [type(refusal) for refusal in refusals] == [InvalidInput] * 4
        with pytest.raises(InvalidInput, match="no public address"):
            await images.fetch("https://c.example/a.png")

    asyncio.run(run())


# -- a real server ---------------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    seen: list[Any]

    def do_GET(self) -> None:
        type(self).seen.append((self.path, dict(self.headers)))
        _, _, kind = self.path.partition("/")
        kind, _, rest = kind.partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
        elif kind == "gone":
            self.send_response(404)
        else:
            self.send_response(200)
        if kind == "gzip":
            self.send_header("Content-Encoding", "gzip")
        if kind == "declared":
            self.send_header("Content-Length", "5000")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"x" * (5000 if kind == "large" else 10))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a.example"]
    command += ["-addext", "subjectAltName=DNS:a.example", "-keyout", str(folder / "key"), "-out", str(folder / "pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def server(certificate: Path) -> Iterator[tuple[int, type[Handler]]]:
    handler = type("Handler", (Handler,), {"seen": []})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "pem", certificate / "key")

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that does not trust the certificate disconnects

    with Server(("127.0.0.1", 0), handler) as running:
        running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port, handler
        running.shutdown()
        thread.join()


def trusting(certificate: Path, port: int, **more: Any) -> dict[str, Any]:
    return {
        "tls": ssl.create_default_context(cafile=str(certificate / "pem")),
        "ports": frozenset({port}),
        "permits": lambda address: address == "127.0.0.1",
        "resolve": names("127.0.0.1"),
    } | more


def test_a_file(server: tuple[int, type[Handler]], certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, handler = server
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    asked = []

    async def once(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]  # a name that means something else the next time

    assert fetch(f"https://a.example:{port}/file#part", **trusting(certificate, port, resolve=once)) == b"x" * 10
    assert asked == ["a.example"]
    [(path, headers)] = handler.seen
    assert path == "/file"
    assert headers["Host"] == f"a.example:{port}"
    assert "Cookie" not in headers
    assert headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("path", "error", "sentence"),
    [
        ("gone", InvalidInput, "status 404"),
        ("gzip", InvalidInput, "Content-Encoding"),
        ("large", TooLarge, "more than 1,000 bytes"),
        ("declared", TooLarge, "more than 1,000 bytes"),
        ("to/http://a.example/file", InvalidInput, "over https only"),
        ("to/https://127.0.0.2:{port}/file", InvalidInput, "no public address"),
        ("to/https://me:word@a.example:{port}/file", InvalidInput, "password"),
        ("to/https://a.example/file", InvalidInput, "port"),
        ("to//to//to//to//file", InvalidInput, "more than 3 times"),
        ("to/", InvalidInput, "more than 3 times"),
    ],
)
def test_what_is_not_taken(
    server: tuple[int, type[Handler]], certificate: Path, path: str, error: type[Exception], sentence: str
) -> None:
    port, _ = server
    with pytest.raises(error, match=sentence):
        fetch(f"https://a.example:{port}/{path.format(port=port)}", **trusting(certificate, port))


def test_redirects(server: tuple[int, type[Handler]], certificate: Path) -> None:
    port, handler = server
    asked = []

    async def found(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"https://a.example:{port}/to//to/https://a.example:{port}/to//file"
    assert fetch(url, **trusting(certificate, port, resolve=found)) == b"x" * 10
    assert len(handler.seen) == 4
    assert asked == ["a.example"] * 4  # each is checked again


def test_a_redirect_to_a_name_that_is_private(server: tuple[int, type[Handler]], certificate: Path) -> None:
    port, handler = server

    async def found(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host == "a.example" else ["10.0.0.1"]

    url = f"https://a.example:{port}/to/https://inner.example:{port}/file"
    with pytest.raises(InvalidInput, match="no public address"):
        fetch(url, **trusting(certificate, port, resolve=found))
    assert len(handler.seen) == 1


@pytest.mark.parametrize("host", ["b.example", "127.0.0.1"])
def test_a_certificate_of_another_host(server: tuple[int, type[Handler]], certificate: Path, host: str) -> None:
    port, handler = server
    with pytest.raises(InvalidInput, match="cannot be fetched") as refusal:
        fetch(f"https://{host}:{port}/file", **trusting(certificate, port))
    assert "127.0.0.1" not in str(refusal.value)
    assert handler.seen == []


def test_a_certificate_of_an_unknown_authority(server: tuple[int, type[Handler]], certificate: Path) -> None:
    port, handler = server
    with pytest.raises(InvalidInput, match="cannot be fetched"):
        fetch(f"https://a.example:{port}/file", **trusting(certificate, port, tls=None))
    assert handler.seen == []
