from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.responses import StreamingResponse

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, listening, refusal
from triton_sam.errors import ServerError
from triton_sam.server.host import free_port
from triton_sam.service import uvicorn_thread
from triton_sam.service.uvicorn_thread import ServiceThread


def test_the_service_answers_as_soon_as_it_is_entered_and_no_longer_than_that() -> None:
    fake = Fake()
    with listening(fake) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        assert answer.json()["state"] == "ready"
        assert "server" not in answer.headers
        assert len(fake.subscribers) == 1
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pytest.fail("it still listens")
    assert fake.transport.closed
    assert fake.subscribers == []


def test_a_port_that_was_taken_meanwhile() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=str(port)), ServiceThread(Fake().app(), "127.0.0.1", port):
            pytest.fail("entered")


def test_idle_connections_do_not_block_others() -> None:
    with listening(Fake()) as port, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=TIMEOUT) as client:
            assert client.post("/v1/segment", json=CLICK).status_code == 200


def test_doubled_slashes_over_a_socket() -> None:
    with listening(Fake()) as port, socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.sendall(b"GET //health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_stop_does_not_wait_for_what_hangs() -> None:
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        connection.sendall(b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    with connection:
        while connection.recv(65536):  # the body, which may come by itself, and the end
            pass


def test_requests_that_outlast_the_shutdown_get_a_503(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn_thread, "SHUTDOWN_SECONDS", 0.3)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    fake = Fake()
    fake.transport.hold()
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        with ServiceThread(fake.app(), "127.0.0.1", port):
            asked = pool.submit(
                lambda: httpx.post(f"http://127.0.0.1:{port}/v1/segment", json=CLICK, timeout=TIMEOUT, trust_env=False)
            )
            fake.transport.wait_for(lambda it: len(it.calls) == 1)
        assert "the server is shutting down" in refusal(asked.result(), 503, "unavailable")
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


def test_an_answer_that_has_begun_is_cut_off_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn_thread, "SHUTDOWN_SECONDS", 0.3)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)

    async def words() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Event().wait()

    app, port = Fake().app(), free_port()
    app.add_route("/words", lambda _: StreamingResponse(words()))
    with contextlib.ExitStack() as stack:
        with ServiceThread(app, "127.0.0.1", port):
            stream = httpx.stream("GET", f"http://127.0.0.1:{port}/words", timeout=TIMEOUT, trust_env=False)
            parts = stack.enter_context(stream).iter_bytes()
            assert next(parts) == b"a"
        with pytest.raises(httpx.RemoteProtocolError):
            next(parts)
    assert "cut off a response" in caplog.text
    assert "Traceback" not in caplog.text
