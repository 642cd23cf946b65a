from __future__ import annotations

import contextlib
import logging
import socket
import time

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, image_file, listening
from triton_sam.service import uvicorn_thread
from triton_sam.service.admission import connections

HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
PART = b'--B\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
FORM = PART + image_file() + b"\r\n--B--\r\n"
UPGRADE = (
    b"GET /v1/hover HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def opened(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(TIMEOUT)
    connection.connect(("127.0.0.1", port))
    return connection


def is_ended(connection: socket.socket) -> bool:
    """Waits until the service ends the connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("begin", [b"", b"GET /health HTTP/1.1\r\nX: ", HEALTH + b"GET /health HT", HEALTH + b"\r\n"])
def test_a_head_that_does_not_come(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    with listening(Fake()) as port, opened(port) as connection:
        connection.sendall(begin)
        assert is_ended(connection)


def test_the_time_limit_of_a_head_is_none_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port, opened(port) as connection:
        body = b'{"image_key": "a", "points": [[1, 1]]}'
        connection.sendall(b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connection.sendall(b"GET /hea")  # half of the next one, too early
        fake.transport.wait_for(lambda it: len(it.calls) == 1)
        time.sleep(0.3)
        fake.transport.release()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert is_ended(connection)


def test_connections_are_counted() -> None:
    with listening(Fake(), service_connections=3) as port, contextlib.ExitStack() as stack:
        held = [stack.enter_context(opened(port)) for _ in range(3)]
        for connection in held:
            connection.sendall(HEALTH)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert is_ended(stack.enter_context(opened(port)))
        held[0].close()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=TIMEOUT) as client:
            for _ in range(100):
                with contextlib.suppress(httpx.TransportError):
                    assert client.post("/v1/segment", json=CLICK).status_code == 200
                    return
                time.sleep(0.05)
        pytest.fail("a place that was given up was not given again")


def test_connections_leave_files_for_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_thread.resource, "getrlimit", lambda which: (1024, 4096))
    assert uvicorn_thread._within_file_limit(2048) == 512
    assert uvicorn_thread._within_file_limit(100) == 100
    monkeypatch.setattr(uvicorn_thread.resource, "getrlimit", lambda which: (uvicorn_thread.resource.RLIM_INFINITY, -1))
    assert uvicorn_thread._within_file_limit(2048) == 2048


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_an_answer_that_is_not_read(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_CHECK_SECONDS", 0.2)
    head = f"Host: here\r\n{more}Content-Type: multipart/form-data; boundary=B\r\nContent-Length: {len(FORM)}\r\n\r\n"
    with listening(Fake()) as port, opened(port, receive_buffer=4096) as connection:
        connection.sendall(b"POST /embedded_model HTTP/1.1\r\n" + head.encode() + FORM)
        with pytest.raises(OSError):  # noqa: PT012 - it is reset in the end, while nothing of it was read
            deadline = time.monotonic() + TIMEOUT
            while time.monotonic() < deadline:
                connection.sendall(b"\r\n")
                time.sleep(0.05)


def test_an_answer_that_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_CHECK_SECONDS", 1.0)
    head = b"Host: here\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=B\r\n"
    with listening(Fake()) as port, opened(port, receive_buffer=65536) as connection:
        connection.sendall(
            b"POST /embedded_model HTTP/1.1\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(FORM) + FORM
        )
        found = 0
        while chunk := connection.recv(65536):
            found += len(chunk)
            time.sleep(0.03)
    assert found > 4 * 256 * 64 * 64 * 4 // 3


def test_pings_whose_answers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNREAD_PONGS", 100)
    pings = (b"\x89\xfd" + bytes(4) + b"p" * 125) * 500
    with listening(Fake()) as port, opened(port, receive_buffer=4096) as connection:
        connection.sendall(UPGRADE)
        assert connection.recv(100).startswith(b"HTTP/1.1 101 ")
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(2000):
                connection.sendall(pings)


def test_pings_whose_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNREAD_PONGS", 100)
    with listening(Fake()) as port, connect(f"ws://127.0.0.1:{port}/v1/hover", proxy=None) as client:
        for _ in range(300):
            assert client.ping().wait(TIMEOUT)


def test_a_refused_handshake_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(Fake(), token="a-very-long-word") as port:
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # uvicorn's own configuration ends it
        with pytest.raises(InvalidStatus) as caught, connect(f"ws://127.0.0.1:{port}/v1/hover", proxy=None):
            pytest.fail("entered")
        assert caught.value.response.status_code == 401
        assert b"not_authorised" in caught.value.response.body
        with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{port}/nothing", proxy=None):
            pytest.fail("entered")
        with opened(port) as connection:  # no key
            connection.sendall(UPGRADE.replace(b"Sec-WebSocket-Key", b"X-Key"))
            assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
            assert is_ended(connection)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
