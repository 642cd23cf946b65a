from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import httpx
import pytest

from tests.unit.service.chat_helpers import PATH, completion, events, request_bytes
from tests.unit.service.helpers import (
    TIMEOUT,
    Fake,
    ask,
    client_of,
    listening,
    piece,
    refusal,
)
from tests.unit.service.test_chat_messages import chat
from triton_sam.service.chat import completions as service_chat


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "failed"])
def test_no_work_while_the_server_is_not_ready(state: str) -> None:
    fake = Fake(state=state)
    for stream in (False, True):
        assert state in refusal(completion(chat(stream=stream), fake), 503, "unavailable")
    assert fake.transport.streams == []


@pytest.mark.parametrize("held_at", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_lost_server(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at

    async def run() -> httpx.Response:
        async with client_of(fake) as client:
            waiting = asyncio.create_task(client.post(PATH, json=chat(stream=stream)))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.streams)
            await asyncio.to_thread(fake.lose, "another died", "sam2")
            await asyncio.to_thread(fake.lose, "its process died", "talker_stream")
            answer = await waiting
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)
            return answer

    answer = asyncio.run(run())
    if stream and held_at:
        assert "its process died" in events(answer)[-1]["error"]["message"]
    else:
        assert "its process died" in refusal(answer, 503, "unavailable")


def test_an_answer_may_take_longer_than_other_requests() -> None:
    fake = Fake()
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake, service_seconds=0.05) as client:
            waiting = asyncio.create_task(client.post(PATH, json=chat()))
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            fake.transport.release()
            return await waiting

    assert asyncio.run(run()).status_code == 200


@pytest.mark.parametrize("held_at", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_but_not_for_ever(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at

    async def run() -> httpx.Response:
        async with client_of(fake, vlm_seconds=0.3) as client:
            answer = await client.post(PATH, json=chat(stream=stream))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)
            return answer

    answer = asyncio.run(run())
    if stream and held_at:
        assert events(answer)[-1]["error"]["code"] == "deadline_exceeded"
    else:
        assert "fewer tokens" in refusal(answer, 504, "deadline_exceeded")


def test_a_body_that_takes_too_long() -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    refusal(ask("POST", PATH, settings={"service_seconds": 0.05}, content=slowly()), 504, "deadline_exceeded")


@pytest.mark.parametrize("held_at", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_cancels_the_answer(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at
    with listening(fake) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(request_bytes(chat(stream=stream)))
            fake.transport.wait_for(lambda it: len(it.streams) == 1)
            if stream and held_at:
                found = b""
                while b'"cat"' not in found:  # pieces come as soon as they are there
                    found += connection.recv(65536)
        fake.transport.wait_for(lambda it: len(it.left) == 1)
    assert fake.transport.run_out == []


@pytest.mark.parametrize("leaves", ["fails", "is cancelled"])
def test_the_work_ends_where_not_even_the_head_can_be_sent(leaves: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    kept = []  # or the garbage collector would close them
    pieces_of = service_chat._pieces

    def pieces(*given: Any) -> Any:
        kept.append(pieces_of(*given))
        return kept[-1]

    monkeypatch.setattr(service_chat, "_pieces", pieces)
    fake.transport.hold_before = 1
    body = json.dumps(chat(stream=True)).encode()
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": PATH, "client": None}
    scope |= {"headers": [], "query_string": b""}

    async def run() -> None:
        app = fake.app()
        sending = asyncio.Event()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for message in messages:
                return message
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sending.set()
            if leaves == "fails":
                raise OSError("gone")
            await asyncio.Event().wait()

        async with app.router.lifespan_context(app):
            task = asyncio.create_task(app(scope, receive, send))
            await sending.wait()
            if leaves == "is cancelled":
                task.cancel()
            # Only a shutdown cancels, and it logs each response that it cuts off.
            with pytest.raises(OSError) if leaves == "fails" else contextlib.nullcontext():
                await task
            assert [found.ag_frame for found in kept] == [None]
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_complete_answer_is_not_cancelled(stream: bool) -> None:
    """On older servers a cancel that meets the end of its request can end the whole server."""
    fake = Fake()
    fake.transport.hold_before = 1
    fake.transport.pieces = lambda call: [piece("a", "stop"), piece("never read")]

    async def run() -> None:
        async with client_of(fake) as client:
            assert (await client.post(PATH, json=chat(stream=stream))).status_code == 200
            assert fake.transport.left == []
            fake.transport.release()
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.run_out)

    asyncio.run(run())
    assert fake.transport.left == []


def test_a_stop_of_the_service_ends_answers() -> None:
    fake = Fake()
    fake.transport.hold_before = 0

    async def run() -> httpx.Response:
        app = fake.app()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=TIMEOUT) as client:
            async with app.router.lifespan_context(app):
                waiting = asyncio.create_task(client.post(PATH, json=chat()))
                await asyncio.to_thread(fake.transport.wait_for, lambda it: it.streams)
            assert len(fake.transport.left) == 1
            return await waiting

    assert "stopping" in refusal(asyncio.run(run()), 503, "unavailable")
