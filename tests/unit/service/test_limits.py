from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, ask, client_of, listening, refusal
from tests.unit.service.test_chat_messages import chat
from triton_sam.service.chat.completions import COMPLETIONS

SMALL = {"max_body_bytes": 1000}
BODY = json.dumps(CLICK).encode()


async def in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_large_bodies() -> None:
    fake = Fake()
    answer = ask("POST", "/v1/segment", fake, settings=SMALL, content=bytes(1001))
    assert "1,000 bytes" in refusal(answer, 413, "too_large")
    assert answer.headers["connection"] == "close"
    assert ask("POST", "/v1/segment", fake, settings=SMALL, content=BODY).status_code == 200


def test_large_bodies_that_do_not_say_so() -> None:
    for path in ("/v1/segment", "/v1/images", "/cancel_pending"):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + bytes(600)
        answer = ask("POST", path, settings=SMALL, content=in_parts(part, bytes(600)), headers=headers)
        refusal(answer, 413, "too_large")


@pytest.mark.parametrize("chunked", [False, True])
def test_the_refusal_arrives_even_while_the_body_is_being_sent(chunked: bool) -> None:
    with listening(Fake(), **SMALL) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        try:
            body: Any = (bytes(100_000) for _ in range(50)) if chunked else bytes(5_000_000)
            connection.request("POST", "/v1/segment", body, encode_chunked=chunked)
            answer = connection.getresponse()
            assert answer.status == 413
            assert json.loads(answer.read())["error"]["code"] == "too_large"
            assert answer.getheader("connection") == "close"
        finally:
            connection.close()


@pytest.mark.parametrize(
    ("settings", "status", "code"),
    [
        ({}, 400, "invalid_input"),
        ({"token": "a-very-long-word"}, 401, "not_authorised"),
        ({"rate": 1, "rate_burst": 1}, 429, "rate_limited"),
    ],
    ids=["form", "token", "rate"],
)
def test_a_refusal_arrives_where_the_connection_is_to_close_and_the_body_still_comes(
    settings: dict[str, Any], status: int, code: str
) -> None:
    """As a proxy asks that keeps no connections: closing at once would reset it, and the sentence be lost."""
    head = b"POST /v1/images HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    kind = b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
    with listening(Fake(), **settings) as port:
        if "rate" in settings:
            talk(port, b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = talk(port, head + kind, *[b"10000\r\n" + bytes(0x10000) + b"\r\n"] * 50, b"0\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert f'"{code}"'.encode() in answer


def talk(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the service closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        for part in parts:
            connection.sendall(part)
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
    return found


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"],
)
def test_a_body_that_stops_coming(head: bytes) -> None:
    with listening(Fake(), body_seconds=0.05) as port:
        found = talk(port, b"POST /v1/segment HTTP/1.1\r\nHost: here\r\n" + head)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in found
    assert b"connection: close" in found.lower()


def test_a_request_that_takes_too_long_is_withdrawn() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> httpx.Response:
        async with client_of(fake, service_seconds=0.5) as client:
            answer = await client.post("/v1/segment", json=CLICK)
            await fake.transport.reached(cancels=1)
            fake.transport.release()
            return answer

    assert "0.5 s" in refusal(asyncio.run(run()), 504, "deadline_exceeded")


def test_waiting_for_triton_is_no_pause_of_the_body() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> httpx.Response:
        async with client_of(fake, body_seconds=0.01, service_seconds=0.2) as client:
            return await client.post("/v1/segment", json=CLICK)

    refusal(asyncio.run(run()), 504, "deadline_exceeded")


def test_requests_at_a_time() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> None:
        async with client_of(fake, service_requests=2) as client:
            working = [asyncio.create_task(client.post("/v1/segment", json=CLICK)) for _ in range(2)]
            await fake.transport.reached(calls=2)
            refused = await client.post("/v1/segment", json=CLICK)
            refusal(refused, 429, "queue_full")
            assert refused.headers["retry-after"] == "1"
            refusal(await client.get("/models"), 429, "queue_full")
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
            fake.transport.release()
            assert [answer.status_code for answer in await asyncio.gather(*working)] == [200, 200]
            assert (await client.post("/v1/segment", json=CLICK)).status_code == 200

    asyncio.run(run())


def test_chat_requests_leave_half_of_the_slots_to_others() -> None:
    fake = Fake()
    fake.transport.hold_before = 0

    async def run() -> None:
        async with client_of(fake, service_requests=5) as client:
            asking = [asyncio.create_task(client.post(COMPLETIONS, json=chat())) for _ in range(2)]
            await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.streams) == 2)
            refused = await client.post(COMPLETIONS, json=chat())
            assert "2 requests to /v1/chat/completions are" in refusal(refused, 429, "queue_full")
            assert refused.headers["retry-after"] == "1"
            fake.transport.hold()
            working = [asyncio.create_task(client.post("/v1/segment", json=CLICK)) for _ in range(3)]
            await fake.transport.reached(calls=3)
            assert "5 requests are" in refusal(await client.post("/v1/segment", json=CLICK), 429, "queue_full")
            fake.transport.release()
            answers = await asyncio.gather(*asking, *working)
            assert [answer.status_code for answer in answers] == [200] * 5
            again = await asyncio.gather(*(client.post(COMPLETIONS, json=chat()) for _ in range(2)))
            assert [answer.status_code for answer in again] == [200, 200]  # refusals took no place

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_one_slot_is_enough_for_a_chat_request() -> None:
    assert ask("POST", COMPLETIONS, settings={"service_requests": 1}, json=chat()).status_code == 200


def test_expect_100_continue_gets_no_100_for_a_refused_body() -> None:
    with listening(Fake(), **SMALL) as port:
        head = b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n"
        found = talk(port, head)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in found


def test_slow_senders_take_no_slots() -> None:
    """One request may be in progress, and four may be arriving."""
    head = b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    with listening(Fake(), service_requests=1) as port, contextlib.ExitStack() as stack:
        url = f"http://127.0.0.1:{port}"
        client = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT))
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)) for _ in range(3)]
        for connection in slow:
            connection.sendall(head + BODY[:1])
        while "triton_sam_service_in_progress 4.0" not in client.get("/metrics").text:
            pass
        assert client.post("/v1/segment", content=BODY).status_code == 200
        assert client.get("/models").status_code == 200
        fourth = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT))
        fourth.sendall(head + BODY[:1])
        while "triton_sam_service_in_progress 5.0" not in client.get("/metrics").text:
            pass
        refused = client.post("/v1/segment", content=BODY)
        assert "4 requests are already being received" in refusal(refused, 429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/models").status_code == 200
        for connection in (*slow, fourth):
            connection.sendall(BODY[1:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert client.post("/v1/segment", content=BODY).status_code == 200


@pytest.mark.parametrize("ends", ["is answered", "disconnects"])
@pytest.mark.parametrize("path", ["/v1/segment", "/v1/images"])
def test_bodies_of_many(path: str, ends: str) -> None:
    """However many send at a time, what they send takes no more memory than is allowed, and clicks go on."""
    head = b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: 4000000\r\n\r\n"
    large: Any = {"files": {"image": bytes(3_000_000)}} if path == "/v1/images" else {"content": bytes(3_000_000)}
    limits = {"max_body_bytes": 5_000_000, "service_body_bytes": 5_000_000}
    with (
        listening(Fake(), **limits) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT, trust_env=False) as client,
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as holder,
    ):
        assert client.post(path, **large).status_code == 400
        holder.sendall(head + bytes(3_999_999))
        while "triton_sam_service_body_bytes 3.999999e+06" not in client.get("/metrics").text:
            pass
        refused = client.post(path, **large)
        assert "the bodies of other requests use" in refusal(refused, 429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        assert client.post("/v1/segment", content=BODY).status_code == 200
        if ends == "is answered":
            holder.sendall(b"0")
            assert holder.recv(65536).startswith(b"HTTP/1.1 400 ")
        else:
            holder.close()
        while "triton_sam_service_body_bytes 0.0" not in client.get("/metrics").text:
            pass
        assert client.post(path, **large).status_code == 400


def test_one_body_that_is_allowed_always_finds_room() -> None:
    limits = {"max_body_bytes": 2_000_000, "service_body_bytes": 1000}
    answer = ask("POST", "/v1/segment", settings=limits, content=bytes(1_900_000))
    refusal(answer, 400, "invalid_input")


@pytest.mark.parametrize("path", ["/v1/segment", "/v1/images", "/cancel_pending"])
def test_a_refusal_after_the_body(path: str) -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> None:
        async with client_of(fake, service_requests=1, max_body_bytes=1000) as client:
            working = asyncio.create_task(client.post("/v1/segment", json=CLICK))
            await fake.transport.reached(calls=1)
            answer = await client.post(path, files={"image": ("a", b"a")})
            assert "1 requests" in refusal(answer, 429, "queue_full")
            assert answer.headers["retry-after"] == "1"
            refusal(await client.post(path, content=bytes(2000)), 429, "queue_full")
            fake.transport.release()
            assert (await working).status_code == 200
            refusal(await client.post("/v1/segment", content=bytes(2000)), 413, "too_large")
            assert (await client.post("/v1/segment", json=CLICK)).status_code == 200

    asyncio.run(run())
