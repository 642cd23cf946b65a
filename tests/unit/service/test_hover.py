from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.unit.service.helpers import CLICK, KEY, TIMEOUT, Fake, listening, mask_result
from tests.unit.service.hover_helpers import hear, hovering, metric, say, until_metric
from triton_sam.client.wire import Call
from triton_sam.errors import ImageExpired


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
        (json.dumps({"id": 5, "image_key": KEY, "everything": {}}), "invalid_input", 5),
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


PAIR = [Subprotocol("triton-sam"), Subprotocol("bearer.a-very-long-word")]


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
        listening(Fake(), token="a-very-long-word") as port,
        pytest.raises(InvalidStatus) as refused,
        hovering(port, **options),
    ):
        pytest.fail("it was let in")
    assert refused.value.response.status_code == 401
    assert refused.value.response.body is not None
    assert json.loads(refused.value.response.body)["error"]["code"] == "not_authorised"


@pytest.mark.parametrize(
    "options", [{"additional_headers": {"Authorization": "Bearer a-very-long-word"}}, {"subprotocols": PAIR}]
)
def test_sockets_with_the_right_token(options: dict[str, Any]) -> None:
    with listening(Fake(), token="a-very-long-word") as port, hovering(port, **options) as socket:
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


def test_every_message_has_an_id_of_its_own() -> None:
    fake = Fake()
    options = {"additional_headers": {"X-Request-ID": "mine"}}
    with listening(fake) as port, hovering(port, **options) as socket:
        for _ in range(2):
            say(socket, **CLICK)
            hear(socket)
    assert [call.request_id for call in fake.transport.calls] == ["mine.1", "mine.2"]
