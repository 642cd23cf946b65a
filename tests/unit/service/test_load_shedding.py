"""Clicks that are refused before they become requests: the same refusal as elsewhere, for a fraction of its price."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, listening
from tests.unit.service.test_connections import UPGRADE
from triton_sam.logs import REQUESTS_LOG
from triton_sam.service import uvicorn_thread
from triton_sam.service.admission import connections
from triton_sam.service.admission.load_shedding import LoadShedder

BODY = json.dumps(CLICK).encode()
HEAD = b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n" % len(BODY)
SENTENCE = "1 requests are already in progress: try again in a moment"


@contextlib.contextmanager
def crowded(**settings: Any) -> Iterator[tuple[int, Fake]]:
    """The port of a service whose only place is taken while the block is open."""
    fake = Fake()
    fake.transport.hold()
    with listening(fake, service_requests=1, **settings) as port:
        first = threading.Thread(target=lambda: httpx.post(address(port), json=CLICK, timeout=TIMEOUT, trust_env=False))
        first.start()
        fake.transport.wait_for(lambda it: len(it.calls) == 1)
        yield port, fake
        fake.transport.release()
        first.join()


def address(port: int, path: str = "/v1/segment") -> str:
    return f"http://127.0.0.1:{port}{path}"


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        yield connection


def answer(connection: socket.socket) -> http.client.HTTPResponse:
    """The next answer, with its body read."""
    found = http.client.HTTPResponse(connection, method="POST")
    found.begin()
    found.body = found.read()  # type: ignore[attr-defined]
    return found


def expect_refusal(found: http.client.HTTPResponse) -> None:
    assert found.status == 429
    assert found.getheader("retry-after") == "1"
    assert found.getheader("content-type") == "application/json"
    assert found.getheader("date")
    error = json.loads(found.body)["error"]  # type: ignore[attr-defined]
    assert error == {"code": "queue_full", "message": SENTENCE, "type": "rate_limit_error", "param": None}


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every response of the load shedder."""
    found: list[bytes] = []
    plain = LoadShedder.response

    def kept(*words: Any) -> bytes:
        found.append(plain(*words))
        return found[-1]

    monkeypatch.setattr(LoadShedder, "response", kept)
    return found


def test_a_connection_is_refused_again_and_again_and_served_in_the_end(refusals: list[bytes]) -> None:
    with crowded() as (port, fake), connected(port) as connection:
        for number in range(20):
            connection.sendall(HEAD + b"X-Request-ID: mine-%d\r\n\r\n" % number + BODY)
            found = answer(connection)
            expect_refusal(found)
            assert found.getheader("x-request-id") == f"mine-{number}"
        assert len(refusals) == 20
        assert httpx.get(address(port, "/health"), trust_env=False).status_code == 200
        counted = httpx.get(address(port, "/metrics"), trust_env=False).text
        assert re.search(r'requests_total{method="POST",route="/v1/segment",status="429"} 20.0', counted)
        assert len(fake.transport.calls) == 1
        fake.transport.release()
        while True:  # until the first one's answer is out
            connection.sendall(HEAD + b"\r\n" + BODY)
            if answer(connection).status == 200:
                break


def test_in_pieces_and_several_at_once(refusals: list[bytes]) -> None:
    request = HEAD + b"\r\n" + BODY
    with crowded() as (port, _), connected(port) as connection:
        for byte in request:
            connection.sendall(bytes([byte]))
        expect_refusal(answer(connection))
        connection.sendall(request * 3)
        expected = refusals[0].split(b"\r\n\r\n")[1]
        found = b""
        while found.count(expected) < 3:
            found += connection.recv(65536)
        assert found.count(b"HTTP/1.1 429 ") == 3
    assert len(refusals) < 4, "of several requests in one read only one is shed, or a client could block the loop"


def test_a_client_that_does_not_read_is_not_served_further(refusals: list[bytes]) -> None:
    with crowded() as (port, _), connected(port) as connection:
        connection.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                connection.sendall((HEAD + b"\r\n" + BODY) * 100)
        assert httpx.get(address(port, "/health"), trust_env=False, timeout=TIMEOUT).status_code == 200
    assert len(refusals) < 1000


def test_what_comes_behind_a_refusal_outlives_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_thread, "_KEEP_ALIVE_SECONDS", 1)
    with crowded() as (port, _), connected(port) as connection:
        connection.sendall(HEAD + b"\r\n" + BODY + UPGRADE)
        found = b""
        while b"HTTP/1.1 101 " not in found:
            found += connection.recv(65536)
        assert found.startswith(b"HTTP/1.1 429 ")
        connection.settimeout(2.5)
        with pytest.raises(TimeoutError):
            assert connection.recv(1) != b"", "closed as if it were idle"


def test_a_stop_between_head_and_body(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, seen = threading.Event(), threading.Event()
    plain, plain_look = connections.HttpProtocol.shutdown, LoadShedder.refuses

    def look(*words: Any) -> bool:
        if plain_look(*words):
            seen.set()
        return seen.is_set()

    def shutdown(it: connections.HttpProtocol) -> None:
        plain(it)
        if it._is_refusing:
            stopping.set()

    monkeypatch.setattr(connections.HttpProtocol, "shutdown", shutdown)
    monkeypatch.setattr(LoadShedder, "refuses", look)
    with ThreadPoolExecutor(1) as pool:
        with crowded() as (port, _):
            connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
            connection.sendall(HEAD + b"\r\n")

            def finish() -> http.client.HTTPResponse:
                assert stopping.wait(TIMEOUT)
                connection.sendall(BODY)
                return answer(connection)

            asked = pool.submit(finish)
            assert seen.wait(TIMEOUT)
        with connection:
            found = asked.result()
            expect_refusal(found)
            assert found.getheader("connection") == "close"
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "more",
    [b"Connection: close\r\n", b"Origin: https://page.example\r\n", b"traceparent: 00-1-2-01\r\n"],
)
def test_special_headers_take_the_normal_code_path(more: bytes, refusals: list[bytes]) -> None:
    with crowded(cors_origins=("https://page.example",)) as (port, _), connected(port) as connection:
        connection.sendall(HEAD + more + b"\r\n" + BODY)
        found = answer(connection)
        expect_refusal(found)
        if b"Origin" in more:
            assert found.getheader("access-control-allow-origin") == "https://page.example"
        if b"close" in more:
            assert connection.recv(1) == b""
    assert refusals == []


@pytest.mark.parametrize("size", [0, 100_000])
def test_what_is_no_click_is_looked_at(size: int, refusals: list[bytes]) -> None:
    with crowded() as (port, _):
        wrong = httpx.post(address(port), content=b" " * size, timeout=TIMEOUT, trust_env=False)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (429, "queue_full")
        assert httpx.get(address(port), trust_env=False).status_code in (405, 429)
        assert httpx.post(address(port, "/v1/segment?a=b"), json=CLICK, trust_env=False).status_code == 429
    assert len(refusals) == (size == 0)


def test_a_body_that_does_not_come_is_refused_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, refusals: list[bytes]
) -> None:
    with crowded() as (port, _), connected(port) as connection:
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        connection.sendall(HEAD + b"\r\n" + BODY[:5])
        found = answer(connection)
        assert (found.status, found.getheader("connection"), found.getheader("retry-after")) == (429, "close", "1")
        assert connection.recv(1) == b""
    assert len(refusals) == 1


def test_a_refusal_has_its_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, REQUESTS_LOG)
    with crowded() as (port, _), connected(port) as connection:
        connection.sendall(HEAD + b"X-Request-ID: bad\x01id\r\n\r\n" + BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    with crowded() as (port, _), connected(port) as connection:
        connection.sendall(HEAD + b"X-Request-ID: a b\r\n\r\n" + BODY)
        found = answer(connection)
        assert re.fullmatch("[0-9a-f]{32}", found.getheader("x-request-id") or "")
    fields = [record.fields for record in caplog.records if record.name == REQUESTS_LOG]  # type: ignore[attr-defined]
    assert {
        "method": "POST",
        "route": "/v1/segment",
        "status": 429,
        "ms": 0.0,
        "caller": "anonymous",
        "image": None,
    } in fields
