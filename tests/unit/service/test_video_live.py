"""``/v1/videos/live`` before a server in memory: frames in, masks out, nothing kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.unit.service.helpers import Fake, listening
from tests.unit.service.video_helpers import VideoTransport, jpeg, video_fake
from tests.video_clips import HEIGHT, WIDTH
from tests.waiting import eventually

POINT: dict[str, Any] = {"object_id": 1, "points": [[3, 3]], "labels": [1]}
Talk = Callable[[ClientConnection], Awaitable[None]]


def live(talk: Talk, fake: Fake | None = None, **settings: Any) -> None:
    async def run(port: int) -> None:
        address = f"ws://127.0.0.1:{port}/v1/videos/live"
        async with websockets.connect(address, max_size=None, proxy=None) as socket:
            await talk(socket)

    with listening(fake or video_fake(), **settings) as port:
        asyncio.run(run(port))


async def ask(socket: ClientConnection, message: bytes | dict[str, Any]) -> dict[str, Any]:
    await socket.send(message if isinstance(message, bytes) else json.dumps(message))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


async def refused(socket: ClientConnection, message: bytes | dict[str, Any]) -> str:
    told: str = (await ask(socket, message))["error"]["message"]
    return told


def objects(answer: dict[str, Any]) -> list[int]:
    return [one["object_id"] for one in answer["results"]]


def test_frames_are_answered_in_order_however_fast_they_come() -> None:
    fake = video_fake()

    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {"model": "sam2"}}))
        assert await ask(socket, jpeg(0)) == {"frame_index": 0, "results": []}
        await socket.send(json.dumps({"prompt": POINT}))
        for index in range(1, 40):
            await socket.send(jpeg(index))
        for index in range(1, 40):
            answer = json.loads(await socket.recv())
            assert answer["frame_index"] == index
            assert objects(answer) == [1]
        assert objects(await ask(socket, {"prompt": {**POINT, "object_id": 5, "frame_index": 39}})) == [1, 5]
        assert objects(await ask(socket, jpeg(40))) == [1, 5]

    live(talk, fake)
    assert fake.transport.done("close")  # type: ignore[attr-defined]


def test_a_message_that_is_refused_changes_nothing() -> None:
    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {}}))
        assert "leave frame_index out" in await refused(socket, {"prompt": {**POINT, "frame_index": 7}})
        assert "frame 0 cannot be used" in await refused(socket, b"no image")
        await socket.send(json.dumps({"prompt": POINT}))
        assert objects(await ask(socket, jpeg(0))) == [1]
        assert "32 x 32" in await refused(socket, jpeg(1, 32, 32))
        assert "cannot be prompted" in await refused(socket, {"prompt": {**POINT, "frame_index": 9}})
        assert "none that is known" in await refused(socket, {"close": {}})
        assert "the field 'x' is unknown" in await refused(socket, {"prompt": {**POINT, "x": 1}})
        assert (await ask(socket, jpeg(1)))["frame_index"] == 1

    live(talk)


def test_prompts_that_wait_are_bounded() -> None:
    """In bytes, and one for each object: nobody needs to send a frame."""
    fake = video_fake()

    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {}}))
        for _ in range(99):
            await socket.send(json.dumps({"prompt": POINT}))
        long = {"size": [HEIGHT, WIDTH], "counts": "x" * (3 * 1024 * 1024)}
        for name in (2, 3):
            await socket.send(json.dumps({"prompt": {"object_id": name, "mask": long}}))
        assert "bytes of prompts wait" in await refused(socket, {"prompt": {"object_id": 4, "mask": long}})
        for name in (2, 3):
            await socket.send(json.dumps({"prompt": {**POINT, "object_id": name}}))
        assert objects(await ask(socket, jpeg(0))) == [1, 2, 3]

    live(talk, fake)
    assert len(fake.transport.done("prompt")) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"frame", "the first message is text"),
        ({"open": 1}, "the first message opens the video"),
        ({"prompt": {}}, "the first message opens the video"),
        ({"open": {"model": "sam9"}}, "there is no model"),
        ({"open": {"model": "sam3"}}, "does not remember videos"),
    ],
)
def test_an_opening_that_is_refused(first: Any, told: str) -> None:
    async def talk(socket: ClientConnection) -> None:
        assert told in await refused(socket, first)
        with pytest.raises(ConnectionClosed):
            await socket.recv()

    live(talk)


def test_a_socket_that_says_nothing_is_closed() -> None:
    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {}}))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001

    live(talk, video_keep_seconds=0.2)


def test_places_are_limited() -> None:
    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {}}))
        assert (await ask(socket, jpeg(0)))["frame_index"] == 0
        host, port = socket.remote_address[:2]
        async with websockets.connect(f"ws://{host}:{port}/v1/videos/live", proxy=None) as other:
            with pytest.raises(ConnectionClosed) as closed:
                await other.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013

    live(talk, video_open=1)


def test_hanging_up_ends_the_session() -> None:
    fake = video_fake()
    transport = fake.transport
    assert isinstance(transport, VideoTransport)

    async def talk(socket: ClientConnection) -> None:
        await socket.send(json.dumps({"open": {}}))
        await socket.send(json.dumps({"prompt": POINT}))
        assert objects(await ask(socket, jpeg(0))) == [1]
        transport.hold_from = 1
        await socket.send(jpeg(1))
        while not transport.held:
            await asyncio.sleep(0.001)
        socket.transport.abort()
        transport.release()
        await asyncio.to_thread(eventually, lambda: transport.done("close"), "the server is told")

    live(talk, fake)


def test_a_token_is_needed_as_on_the_other_socket(tmp_path: Path) -> None:
    async def run(port: int) -> None:
        address = f"ws://127.0.0.1:{port}/v1/videos/live"
        with pytest.raises(websockets.InvalidStatus):
            async with websockets.connect(address, proxy=None):
                pass
        protocols: Any = ["triton-sam", "bearer.a-very-secret-word"]
        async with websockets.connect(address, proxy=None, subprotocols=protocols) as socket:
            await socket.send(json.dumps({"open": {}}))
            assert (await ask(socket, jpeg(0)))["frame_index"] == 0

    with listening(video_fake(), token="a-very-secret-word") as port:
        asyncio.run(run(port))
