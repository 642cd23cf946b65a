from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, FakeTransport, listening
from tests.unit.service.hover_helpers import hear, hovering, say
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.gateway import Gateway
from triton_sam.service.routes import hover
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.settings import Settings


def test_messages_that_are_too_large() -> None:
    with listening(Fake()) as port, hovering(port) as socket:
        socket.send("x" * (1024 * 1024 + 1))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=TIMEOUT)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


class DeafSocket:
    """A client that sends and does not read."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.closed_with: int | None = None

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send_text(self, text: str) -> None:
        await asyncio.Event().wait()

    headers: dict[str, str] = {}  # noqa: RUF012

    async def close(self, code: int, reason: str) -> None:
        self.closed_with = code

    def say(self, document: dict[str, Any]) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(document)})


def counting() -> tuple[ServiceMetrics, hover.RateLimit]:
    metrics = ServiceMetrics()
    return metrics, hover.RateLimit(AccessControl(Settings(), metrics.callers), None, "127.0.0.1")


def test_a_slow_reader_does_not_grow_the_memory() -> None:
    fake = Fake()

    async def run() -> None:
        gateway = Gateway(fake.backend, Settings())
        async with gateway.opened():
            deaf = DeafSocket()
            socket = hover._HoverSocket(deaf, gateway, *counting())  # type: ignore[arg-type]
            running = asyncio.create_task(socket.run())
            for index in range(3 * hover._MAX_NOTICES):  # masks grow old, and superseded ones are dropped first
                deaf.say({**CLICK, "id": index})
                while not deaf.incoming.empty():
                    await asyncio.sleep(0)
                assert len(socket._unsent) <= hover._MAX_NOTICES + hover._MAX_UNSENT
            assert not running.done()
            for _ in range(2 * hover._MAX_UNSENT):
                deaf.say({"id": "bad"})
            await asyncio.wait_for(running, TIMEOUT)
            assert deaf.closed_with == hover.TRY_AGAIN_LATER
            assert len(socket._unsent) <= hover._MAX_NOTICES + hover._MAX_UNSENT + 1
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert not [name for name in names if "_HoverSocket" in name]

    asyncio.run(run())


def answers_of(socket: hover._HoverSocket) -> list[str]:
    return [answer.outcome for answer in socket._unsent]


def test_unsent_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hover, "_MAX_UNSENT_BYTES", 1000)

    async def run() -> None:
        gateway = Gateway(Fake().backend, Settings())
        socket = hover._HoverSocket(DeafSocket(), gateway, *counting())  # type: ignore[arg-type]
        socket._respond(3, "3", json.dumps("x" * 5000))  # one alone may be large
        assert not socket._closing.is_set()
        socket._respond(2, "2", json.dumps("x" * 600))
        assert not socket._closing.is_set()
        socket._respond(1, "1", json.dumps("x" * 600))
        assert socket._closing.is_set()
        assert answers_of(socket) == ["result"] * 3

    asyncio.run(run())


def test_an_unexpected_exception(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake()
    fake.transport.answer = lambda call: {"result_json": np.array([b"\xff"], dtype=object)}
    with listening(fake) as port, hovering(port) as socket:
        say(socket, **CLICK, id=1)
        answer = hear(socket)
        assert answer["id"] == 1
        assert answer["error"]["code"] == "internal_error"
        fake.transport.answer = FakeTransport().answer
        say(socket, **CLICK, id=2)
        assert "result" in hear(socket)
    assert "unexpected exception" in caplog.text


def test_a_message_of_too_many_parts() -> None:
    with listening(Fake()) as port, hovering(port) as socket:
        socket.send('{"points":[' + "[]," * 100_000 + "0]}")
        assert hear(socket)["error"]["code"] == "too_large"
        say(socket, **CLICK, id=2)
        assert "result" in hear(socket)


def test_an_unsent_mask_that_is_older_than_another_counts_as_superseded() -> None:
    old = hover._HoverResponse(1, "result", "7", '"result":' + json.dumps({"mask": np.zeros(3).tolist()}))
    assert json.loads(hover._superseded_if_older(old, 2).text) == {"id": 7, "superseded": True}
    assert hover._superseded_if_older(old, 1) is old


def test_messages_have_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("alice a-long-secret-word 1 2\n")
    path.chmod(0o600)
    options = {"additional_headers": {"Authorization": "Bearer a-long-secret-word"}}
    with listening(Fake(), tokens_file=path) as port, hovering(port, **options) as socket:
        for _ in range(2):
            say(socket, **CLICK)
            assert "result" in hear(socket)
        say(socket, **CLICK)
        assert hear(socket)["error"]["code"] == "rate_limited"
        path.write_text("bob another-long-secret\n")

        def ask_on() -> None:
            """The file is looked at again within a second or so."""
            deadline = time.monotonic() + TIMEOUT
            while time.monotonic() < deadline:
                say(socket, **CLICK)
                hear(socket)

        with pytest.raises(ConnectionClosed) as closed:
            ask_on()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is no longer valid")
