"""The asyncio client through a real service: its WebSocket for hovers, closed connections for cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.test_service_secured import throw_away_certificate
from tests.unit.client.memory_server import MemoryServer
from tests.unit.client.test_through_service import PICTURE, TOKEN, fake_of, service
from tests.unit.service.helpers import Fake, FakeTransport, listening
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result
from triton_sam.client.wire import Call
from triton_sam.errors import InvalidInput, NotAuthorised, TritonSamError, Unavailable
from triton_sam.server.host import free_port
from triton_sam.service.uvicorn_thread import ServiceThread

SOCKET, USER = "socket", "user"


@pytest.fixture
def memory() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def fake(memory: MemoryServer) -> Fake:
    return fake_of(memory)


@pytest.fixture
def url(fake: Fake) -> Iterator[str]:
    with listening(fake) as port:
        yield f"http://127.0.0.1:{port}"


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 60))


def ways(fake: Fake) -> list[str]:
    """How each click has come: over a socket, or as a request of a session."""
    clicks = [call for call in fake.transport.calls if "prompt_json" in call.inputs]
    return [str(call.parameters["session_id"]).split("/")[1] for call in clicks]


@pytest.mark.parametrize("latest_wins", [True, False])
@pytest.mark.parametrize("form", ["bits", "rle", "polygon"])
def test_the_same_results_as_the_blocking_client(
    latest_wins: bool, form: str, fake: Fake, url: str, memory: MemoryServer
) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(url, latest_wins=latest_wins) as client:
            client.set_image(PICTURE)
            masks = await client.segment_async([[3, 2]], [1], multimask=True, format=form)
            logits = await client.predict_async([[3, 2]], [1], multimask_output=True)
        assert masks is not None
        assert logits is not None
        with SAM2TritonClient(transport=memory) as straight:
            straight.set_image(PICTURE)
            assert masks.result == straight.segment([[3, 2]], [1], multimask=True, format=form).result
            expected = straight.predict([[3, 2]], [1], multimask_output=True)
        assert all(np.array_equal(one, other) for one, other in zip(logits, expected, strict=True))

    run(body())
    assert ways(fake) == [SOCKET if latest_wins else USER] * 2


def test_the_newest_hover_wins_and_the_others_are_never_computed(fake: Fake, url: str, memory: MemoryServer) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(url, latest_wins=True) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            fake.transport.hold()
            tasks = []
            for x in range(3):
                tasks.append(asyncio.create_task(client.predict_async([[x, 1]], [1])))
                await fake.transport.reached(calls=2 + x)
            fake.transport.release()
            results = await asyncio.gather(*tasks)
        assert [result is None for result in results] == [True, True, False]
        assert results[2] is not None
        assert results[2][0][0, 0, 0, 0] == 2
        assert (client.get_session_status("default").cancelled, client.get_session_status("default").completed) == (
            2,
            1,
        )

    run(body())
    assert ways(fake) == [SOCKET] * 3
    assert memory.kinds == ["encode", "click"]


@pytest.mark.parametrize("latest_wins", [True, False])
def test_a_cancel_reaches_the_server(latest_wins: bool, fake: Fake, url: str, memory: MemoryServer) -> None:
    """By a closed connection, which the service notices; the next click works."""

    async def body() -> None:
        async with SpeculativeSAM2Client(url, latest_wins=latest_wins) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            fake.transport.hold()
            tasks = [asyncio.create_task(client.predict_async([[1, 1]], [1], f"s{number}")) for number in range(3)]
            await fake.transport.reached(calls=4)
            for number in range(3):
                assert client.cancel_session_requests(f"s{number}", keep_latest=False) == 1
            assert await asyncio.gather(*tasks) == [None] * 3
            await fake.transport.reached(cancels=3)
            assert memory.kinds == ["encode"]
            fake.transport.release()
            assert await client.predict_async([[1, 1]], [1], "s0") is not None

    run(body())


class DropsOne(FakeTransport):
    """Drops the request that a cancel names, and keeps the others of its session."""

    def _supersede(self, newer: Call) -> None:
        for held in [held for held in self.held if held.call.parameters["sequence"] == newer.parameters["only"]]:
            held.cancelled = True
            self.held.remove(held)
            held.let_go()


def test_fifty_requests_and_one_is_wanted(memory: MemoryServer) -> None:
    transport = DropsOne(memory.infer)

    async def body(url: str) -> None:
        async with SpeculativeSAM2Client(url) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            transport.hold()
            points = [[[number, 1]] for number in range(50)]
            tasks = await queue_multiple_requests(client, points, [[1]] * 50, "s")
            await transport.reached(calls=51)
            assert client.cancel_session_requests("s") == 49
            await transport.reached(cancels=49)
            transport.release()
            result = await wait_for_latest_result(tasks, client, "s")
            assert result is not None
            assert result[0][0, 0, 0, 0] == 49
            assert [await task for task in tasks[:49]] == [None] * 49

    with listening(Fake(transport)) as port:
        run(body(f"http://127.0.0.1:{port}"))
    assert memory.kinds == ["encode", "click"]


def test_an_encode_that_is_not_wanted_any_more_is_cancelled(fake: Fake, url: str, memory: MemoryServer) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(url) as client:
            fake.transport.hold()
            client.set_image(PICTURE)
            await fake.transport.reached(calls=1)
            client.set_image(PICTURE + b" ")
            await fake.transport.reached(calls=2, cancels=1)
            fake.transport.release()
            await client.image_ready()

    run(body())
    assert memory.kinds == ["encode"]


def test_more_sessions_than_sockets_and_a_service_without_any(memory: MemoryServer) -> None:
    fake = fake_of(memory)

    async def body(url: str) -> None:
        async with SpeculativeSAM2Client(url, latest_wins=True) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            for number in range(12):
                assert await client.predict_async([[1, 1]], [1], f"session {number}") is not None

    with listening(fake, service_sockets=1) as port:
        run(body(f"http://127.0.0.1:{port}"))
    assert len(ways(fake)) == 12
    assert set(ways(fake)) == {SOCKET, USER}


@pytest.mark.parametrize("latest_wins", [True, False])
def test_a_server_that_is_restarted_under_a_client(latest_wins: bool, memory: MemoryServer) -> None:
    port = free_port()

    async def body() -> None:
        async with SpeculativeSAM2Client(f"http://127.0.0.1:{port}", latest_wins=latest_wins) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            assert await client.predict_async([[1, 1]], [1]) is not None
            await asyncio.to_thread(first.__exit__, None, None, None)
            second = ServiceThread(fake_of(new).app(), "127.0.0.1", port)
            await asyncio.to_thread(second.__enter__)
            try:
                assert await client.predict_async([[1, 1]], [1]) is not None
            finally:
                await asyncio.to_thread(second.__exit__, None, None, None)

    new = MemoryServer()
    first = ServiceThread(fake_of(memory).app(), "127.0.0.1", port)
    first.__enter__()
    run(body())
    assert new.kinds == ["click", "encode", "click"]


@pytest.mark.parametrize("latest_wins", [True, False])
@pytest.mark.parametrize("raised", [InvalidInput("wrong"), Unavailable("busy")], ids=["invalid", "busy"])
def test_errors_are_raised(latest_wins: bool, raised: TritonSamError, url: str, memory: MemoryServer) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(url, latest_wins=latest_wins, retries=0) as client:
            client.set_image(PICTURE)
            await client.image_ready()
            memory.failures = [raised]
            with pytest.raises(type(raised), match=str(raised)):
                await client.predict_async([[1, 1]], [1])

    run(body())


def test_tls_and_a_token_on_both_ways(memory: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def body(url: str) -> None:
        async with SpeculativeSAM2Client(url, token=TOKEN) as client:
            client.set_image(PICTURE)
            client.configure_session("hovers", latest_wins=True)
            for session in ("clicks", "hovers"):
                assert await client.predict_async([[1, 1]], [1], session) is not None
        async with SpeculativeSAM2Client(url) as client:
            client.set_image(PICTURE)
            with pytest.raises(NotAuthorised, match="requires a token"):
                await client.predict_async([[1, 1]], [1])

    with service(memory, "https", tls_certificate=certificate, tls_key=key, token=TOKEN) as url:
        run(body(url))


def test_background_requests_use_no_socket(fake: Fake, url: str) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(url, latest_wins=True, background=True) as client:
            client.set_image(PICTURE)
            assert await client.segment_async([[3, 2]], [1]) is not None

    run(body())
    assert ways(fake) == [USER]
    assert all(call.parameters["background"] is True for call in fake.transport.calls)
