from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.unit.service.helpers import CLICK, KEY, TIMEOUT, Fake, FakeTransport, listening, mask_result
from triton_sam.client.wire import Call
from triton_sam.errors import ImageExpired
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.gateway import Gateway
from triton_sam.service.routes import hover
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.settings import Settings


@contextlib.contextmanager
def hovering(port: int, path: str = "/v1/hover", **options: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}{path}", proxy=None, open_timeout=TIMEOUT, **options) as socket:
        yield socket


def say(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def hear(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=TIMEOUT))
    return found


def metric(port: int, line: str) -> bool:
    with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
        return line in client.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()


def until_metric(port: int, line: str) -> None:
    while not metric(port, line):  # the test's time limit ends it otherwise
        pass


def test_a_hover_and_its_id() -> None:
    fake = Fake()
    with listening(fake) as port, hovering(port) as socket:
        for name in (7, "seven", 7.5, None):
            say(socket, **CLICK, id=name, format="rle", model="sam3")
            assert hear(socket) == {"id": name, "result": mask_result()}
        say(socket, **CLICK)
        assert hear(socket)["id"] is None
        assert metric(port, 'triton_sam_service_hovers_total{outcome="result"} 5.0')
    assert fake.transport.calls[0].model == "sam3"
    assert fake.transport.prompt(0) == {"points": [[3, 2]], "format": "rle"}
    assert fake.transport.calls[0].parameters["latest_wins"] is True
    sessions = {call.parameters["session_id"] for call in fake.transport.calls}
    assert len(sessions) == 1


def test_doubled_slashes_here_too() -> None:
    with listening(Fake()) as port, hovering(port, "//v1//hover") as socket:
        say(socket, **CLICK, id=1)
        assert "result" in hear(socket)


def test_the_newest_wins() -> None:
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port, hovering(port) as socket:
        for index in range(10):
            say(socket, **CLICK, id=index)
        superseded = [hear(socket) for _ in range(9)]
        assert sorted(answer["id"] for answer in superseded) == list(range(9))
        assert all(answer["superseded"] is True for answer in superseded)
        fake.transport.release()
        assert hear(socket) == {"id": 9, "result": mask_result()}
        assert metric(port, 'triton_sam_service_hovers_total{outcome="superseded"} 9.0')


def test_sockets_do_not_supersede_each_other() -> None:
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port, hovering(port) as one, hovering(port) as other:
        say(one, **CLICK, id=1)
        say(other, **CLICK, id=2)
        fake.transport.wait_for(lambda it: len(it.calls) == 2)
        fake.transport.release()
        assert hear(one) == {"id": 1, "result": mask_result()}
        assert hear(other) == {"id": 2, "result": mask_result()}


@pytest.mark.parametrize(
    ("message", "code", "name"),
    [
        ("no json", "invalid_input", None),
        ("[1]", "invalid_input", None),
        (b"bytes", "invalid_input", None),
        ('{"id": true}', "invalid_input", None),
        ('{"id": 1e999}', "invalid_input", None),
        ('{"id": [1]}', "invalid_input", None),
        (json.dumps({"id": "x" * 300}), "invalid_input", None),
        ('{"id": 1}', "invalid_input", 1),
        (json.dumps({**CLICK, "id": 2, "model": "sam9"}), "not_found", 2),
        (json.dumps({**CLICK, "id": 3, "session_id": "me"}), "invalid_input", 3),
        (json.dumps({"id": 4, "image_key": KEY, "text": "a cat"}), "unsupported", 4),
    ],
)
def test_a_bad_message_is_answered_and_the_socket_lives_on(message: str | bytes, code: str, name: object) -> None:
    fake = Fake()
    with listening(fake) as port, hovering(port) as socket:
        socket.send(message)
        answer = hear(socket)
        assert answer["id"] == name
        assert answer["error"]["code"] == code
        assert answer["error"]["message"]
        assert fake.transport.calls == []
        say(socket, **CLICK, id="next")
        assert hear(socket)["id"] == "next"


def test_an_error_of_the_segmenter() -> None:
    fake = Fake()

    def fail(call: Call) -> Any:
        raise ImageExpired("send it again")

    fake.transport.answer = fail
    with listening(fake) as port, hovering(port) as socket:
        say(socket, **CLICK, id=1)
        error = {"code": "image_expired", "message": "send it again", "type": "invalid_request_error", "param": None}
        assert hear(socket) == {"id": 1, "error": error}


def test_a_lost_server() -> None:
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port, hovering(port) as socket:
        say(socket, **CLICK, id=1)
        fake.transport.wait_for(lambda it: len(it.calls) == 1)
        fake.lose("it died")
        answer = hear(socket)
        assert answer["id"] == 1
        assert answer["error"]["code"] == "unavailable"
        assert "it died" in answer["error"]["message"]
        say(socket, **CLICK, id=2)
        assert hear(socket)["error"]["code"] == "unavailable"
        fake.state = "ready"
        fake.transport.release()
        say(socket, **CLICK, id=3)
        assert hear(socket) == {"id": 3, "result": mask_result()}


def test_nothing_is_left_of_a_closed_socket() -> None:
    fake = Fake()
    fake.transport.hold()
    with listening(fake) as port:
        with hovering(port) as socket:
            say(socket, **CLICK, id=1)
            fake.transport.wait_for(lambda it: len(it.calls) == 1)
            loop = fake.transport.held[0].loop
            assert metric(port, "triton_sam_service_websockets 1.0")
        fake.transport.wait_for(lambda it: len(it.cancels) == 1)
        until_metric(port, "triton_sam_service_websockets 0.0")
        found: list[str] = []
        looked = threading.Event()

        def look() -> None:
            found.extend(str(task.get_coro()) for task in asyncio.all_tasks(loop))
            looked.set()

        loop.call_soon_threadsafe(look)
        assert looked.wait(TIMEOUT)
        assert not [task for task in found if "_HoverSocket" in task]


def test_a_stop_closes_sockets() -> None:
    fake = Fake()
    with contextlib.ExitStack() as stack:
        with listening(fake) as port:
            socket = stack.enter_context(hovering(port))
            say(socket, **CLICK, id=1)
            hear(socket)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=TIMEOUT)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_sockets_at_a_time() -> None:
    with listening(Fake(), service_sockets=1) as port:
        with hovering(port) as first:
            with hovering(port) as second, pytest.raises(ConnectionClosed) as closed:
                second.recv(timeout=TIMEOUT)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            say(first, **CLICK, id=1)
            assert "result" in hear(first)
        until_metric(port, "triton_sam_service_websockets 0.0")
        with hovering(port) as third:
            say(third, **CLICK, id=1)
            assert "result" in hear(third)


def test_messages_that_are_too_large() -> None:
    with listening(Fake()) as port, hovering(port) as socket:
        socket.send("x" * (1024 * 1024 + 1))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=TIMEOUT)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


PAIR = [Subprotocol("triton-sam"), Subprotocol("bearer.word")]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"additional_headers": {"Authorization": "Bearer wrong"}},
        {"subprotocols": [Subprotocol("triton-sam")]},
        {"subprotocols": [Subprotocol("triton-sam"), Subprotocol("bearer.wrong")]},
    ],
)
def test_sockets_without_the_right_token(options: dict[str, Any]) -> None:
    with (
        listening(Fake(), token="word") as port,
        pytest.raises(InvalidStatus) as refused,
        hovering(port, **options),
    ):
        pytest.fail("it was let in")
    assert refused.value.response.status_code == 401
    assert refused.value.response.body is not None
    assert json.loads(refused.value.response.body)["error"]["code"] == "not_authorised"


@pytest.mark.parametrize("options", [{"additional_headers": {"Authorization": "Bearer word"}}, {"subprotocols": PAIR}])
def test_sockets_with_the_right_token(options: dict[str, Any]) -> None:
    with listening(Fake(), token="word") as port, hovering(port, **options) as socket:
        assert socket.subprotocol == ("triton-sam" if "subprotocols" in options else None)
        say(socket, **CLICK, id=1)
        assert "result" in hear(socket)


def test_pages_of_others() -> None:
    with listening(Fake(), cors_origins="https://page.example") as port:
        with pytest.raises(InvalidStatus) as refused, hovering(port, origin="https://other.example"):
            pytest.fail("it was let in")
        assert refused.value.response.status_code == 403
        for origin in ("https://page.example", f"http://127.0.0.1:{port}"):
            with hovering(port, origin=origin) as socket:
                say(socket, **CLICK, id=1)
                assert "result" in hear(socket)


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


def counting() -> tuple[ServiceMetrics, hover._RateLimit]:
    metrics = ServiceMetrics()
    return metrics, hover._RateLimit(AccessControl(Settings(), metrics.callers), None, "127.0.0.1")


def test_whoever_does_not_read_makes_no_memory_grow() -> None:
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
        assert not socket._hung_up.is_set()
        socket._respond(2, "2", json.dumps("x" * 600))
        assert not socket._hung_up.is_set()
        socket._respond(1, "1", json.dumps("x" * 600))
        assert socket._hung_up.is_set()
        assert answers_of(socket) == ["result"] * 3

    asyncio.run(run())


def test_an_answer_that_nobody_expected(caplog: pytest.LogCaptureFixture) -> None:
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
    assert "nobody expected" in caplog.text


def test_a_message_of_too_many_parts() -> None:
    with listening(Fake()) as port, hovering(port) as socket:
        socket.send('{"points":[' + "[]," * 100_000 + "0]}")
        assert hear(socket)["error"]["code"] == "too_large"
        say(socket, **CLICK, id=2)
        assert "result" in hear(socket)


def test_an_unsent_mask_that_is_older_than_another_counts_as_superseded() -> None:
    old = hover._Answer(1, "result", "7", '"result":' + json.dumps({"mask": np.zeros(3).tolist()}))
    assert json.loads(hover._aged(old, 2).text) == {"id": 7, "superseded": True}
    assert hover._aged(old, 1) is old


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
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is not valid any more")


def test_every_message_has_an_id_of_its_own() -> None:
    fake = Fake()
    options = {"additional_headers": {"X-Request-ID": "mine"}}
    with listening(fake) as port, hovering(port, **options) as socket:
        for _ in range(2):
            say(socket, **CLICK)
            hear(socket)
    assert [call.request_id for call in fake.transport.calls] == ["mine.1", "mine.2"]
