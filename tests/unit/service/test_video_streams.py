"""Propagations of videos and their clients: slow readers slow them down, and those that hang up end them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.unit.client.video_server import by_memory
from tests.unit.service.helpers import Fake
from tests.unit.service.video_helpers import CLICK, VideoTransport, jpeg, lines_of, video_fake, video_service
from tests.video_clips import HEIGHT, WIDTH, write_video
from tests.waiting import eventually

FRAMES, SIZE = 40, (640, 480)
#: A reader that takes nothing for so long has brought the propagation to rest.
REST_SECONDS = 0.5


@pytest.fixture(scope="module")
def fake() -> Fake:
    """Masks of noise, whose run lengths are a hundred kilobytes a frame."""
    return video_fake(by_memory)


@pytest.fixture(scope="module")
def service(fake: Fake) -> Iterator[httpx.Client]:
    with video_service(fake) as client:
        yield client


@pytest.fixture(scope="module")
def video(service: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a video."""
    file = tmp_path_factory.mktemp("film") / "long.mp4"
    data = write_video(file, FRAMES, size=SIZE, options={"preset": "ultrafast"}).read_bytes()
    made = service.post("/v1/videos", files={"file": ("long.mp4", data)})
    assert made.status_code == 201, made.text
    return f"/v1/videos/{made.json()['id']}"


@pytest.fixture
def where(fake: Fake, service: httpx.Client, video: str) -> str:
    """The same with one prompt, of which nothing was tracked yet."""
    assert service.post(f"{video}/reset").status_code == 204
    assert service.post(f"{video}/prompts", json=CLICK).status_code == 200
    transport_of(fake).calls.clear()
    return video


def started(service: httpx.Client, where: str) -> socket.socket:
    """A connection with a propagation of which nothing is read yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connection.settimeout(60)
    connection.connect((service.base_url.host, service.base_url.port or 0))
    connection.sendall(f"POST {where}/propagate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    return connection


def at_rest(transport: VideoTransport) -> int:
    """Frames that were tracked when no more are."""
    tracked, since = 0, time.monotonic()

    def has_rested() -> bool:
        nonlocal tracked, since
        now = len(transport.done("track"))
        if now != tracked:
            tracked, since = now, time.monotonic()
        return tracked > 0 and time.monotonic() - since > REST_SECONDS

    eventually(has_rested, "the propagation comes to rest")
    return tracked


def transport_of(fake: Fake) -> VideoTransport:
    transport: Any = fake.transport
    return transport


def test_a_slow_reader_slows_it_down(fake: Fake, service: httpx.Client, where: str) -> None:
    with started(service, where) as connection:
        assert 0 < at_rest(transport_of(fake)) < FRAMES
        assert service.get(where).json()["propagating"]
        content = b""
        while b'"done":true' not in content[-100:]:
            content += connection.recv(2**20)
    assert len(transport_of(fake).done("track")) == FRAMES
    assert content.count(b'"frame_index"') == FRAMES


@pytest.mark.parametrize("has_rested", [False, True], ids=["at once", "that never reads"])
def test_a_client_that_hangs_up(fake: Fake, service: httpx.Client, where: str, *, has_rested: bool) -> None:
    with started(service, where) as connection:
        if has_rested:
            at_rest(transport_of(fake))
        else:
            assert b"200 OK" in connection.recv(100)
    eventually(lambda: not service.get(where).json()["propagating"], "it ends")
    assert len(transport_of(fake).done("track")) < FRAMES
    tracked = service.get(where).json()["tracked"]
    assert tracked[0][0] == 0
    assert tracked[0][1] < FRAMES - 1
    lines = lines_of(service.post(f"{where}/propagate", json={"start_frame_index": FRAMES - 3}).text)
    assert lines[-1] == {"done": True, "frames": 3}


def test_deleting_a_video_ends_its_propagation(fake: Fake, service: httpx.Client) -> None:
    transport = transport_of(fake)
    made = service.post("/v1/videos", json={"width": WIDTH, "height": HEIGHT})
    where = f"/v1/videos/{made.json()['id']}"
    for index in range(5):
        service.put(f"{where}/frames/{index}", content=jpeg(index))
    service.post(f"{where}/prompts", json=CLICK)
    transport.hold_from = 2
    with service.stream("POST", f"{where}/propagate") as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["frame_index"] == 0
        eventually(lambda: transport.held, "a frame waits")
        assert service.delete(where).status_code == 204
        assert json.loads(list(lines)[-1]) == {"cancelled": True, "frames": 2}
    transport.release()
    assert service.get(where).status_code == 404


def test_prompts_are_taken_meanwhile(fake: Fake, service: httpx.Client, where: str) -> None:
    transport = transport_of(fake)
    transport.hold_from = 5
    with service.stream("POST", f"{where}/propagate", json={"max_frames": 8}) as answer:
        lines = answer.iter_lines()
        next(lines)
        eventually(lambda: transport.held, "a frame waits")
        transport.release()
        second = service.post(f"{where}/prompts", json={**CLICK, "object_id": 2, "frame_index": 20})
        assert second.status_code == 200
        rest = [json.loads(line) for line in lines]
    assert rest[-1] == {"done": True, "frames": 8}
    assert [each["object_id"] for each in service.get(where).json()["objects"]] == [1, 2]


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["only", "and made anew"])
def test_an_object_that_is_removed_meanwhile(
    fake: Fake, service: httpx.Client, where: str, *, is_made_anew: bool
) -> None:
    """What was computed before comes after its removal, and is neither kept nor taken for a new one's."""
    assert service.post(f"{where}/prompts", json={**CLICK, "object_id": 2}).status_code == 200
    with started(service, where) as connection:
        tracked = at_rest(transport_of(fake))
        assert tracked < FRAMES - 2
        assert service.delete(f"{where}/objects/1").status_code == 204
        if is_made_anew:
            again = {**CLICK, "frame_index": FRAMES - 1}
            assert service.post(f"{where}/prompts", json=again).status_code == 200
        content = b""
        while b'"done":true' not in content[-100:]:
            content += connection.recv(2**20)
    known = service.get(where).json()
    assert known["presence"]["2"] == [[0, FRAMES - 1]]
    for frame in (tracked - 2, tracked - 1):
        kept = service.get(f"{where}/masks?frame_index={frame}").json()
        assert [one["object_id"] for one in kept["results"]] == [2]
    assert known["presence"].get("1") == ([[tracked, FRAMES - 1]] if is_made_anew else None)
