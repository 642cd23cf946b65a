"""Videos through the service in front of the real Triton: the same masks as the client's, from any of its processes."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets
from PIL import Image

from tests.server_readings import counters
from tests.video_service import VideoService, masks_of, serving_videos
from tests.video_serving import SIZE, frame
from tests.waiting import eventually
from triton_sam import SAM2VideoClient
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
LENGTH = 10
CLICK: dict[str, Any] = {"frame_index": 2, "object_id": 1, "points": [[60, 50]], "labels": [1]}
BOX: dict[str, Any] = {"frame_index": 2, "object_id": 7, "box": [90, 20, 150, 90]}
Masks = dict[tuple[int, int], Any]


@pytest.fixture(
    scope="module",
    params=[1, pytest.param(3, marks=pytest.mark.part("video"))],
    ids=lambda count: f"{count}-service-processes",
)
def running(
    request: pytest.FixtureRequest,
    video_repository: Path,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    home = tmp_path_factory.mktemp("home")
    with serving_videos(video_repository, home, service_processes=request.param) as started:
        yield started


@pytest.fixture
def service(running: RunningServer) -> VideoService:
    return VideoService(running.urls["service"])


@pytest.fixture(scope="module")
def frames_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without losses, so that what is sent to Triton is the same both ways."""
    path = tmp_path_factory.mktemp("film") / "film.webp"
    pictures = [Image.open(io.BytesIO(frame(number))) for number in range(LENGTH)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], lossless=True, method=0)
    return path


@pytest.fixture(scope="module")
def expected(running: RunningServer, frames_file: Path) -> Masks:
    """By frame and object: what the client finds, forward and backward."""
    found = {}
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(str(frames_file))
        client.add_new_points_or_box(state, 2, 1, CLICK["points"], CLICK["labels"])
        client.add_new_points_or_box(state, 2, 7, box=BOX["box"])
        for first, reverse in ((2, False), (1, True)):
            for index, names, masks in client.propagate_in_video(state, first, reverse=reverse):
                found |= {(index, name): mask[0] for name, mask in zip(names, masks, strict=True)}
    return found


def test_a_video_from_its_upload_to_its_end(
    service: VideoService, running: RunningServer, frames_file: Path, expected: Masks
) -> None:
    before = counters(running, "sam2")["video_sessions"]
    made = service.ask("POST", "", 201, files={"file": ("film.webp", frames_file.read_bytes())}).json()
    assert (made["width"], made["height"], made["frames"], made["axis"]) == (*SIZE, LENGTH, "t")
    where = f"/{made['id']}"
    assert service.ask("POST", f"{where}/prompts", json=CLICK).json()["results"][0]["object_id"] == 1
    assert len(service.ask("POST", f"{where}/prompts", json=BOX).json()["results"]) == 2
    *lines, last = service.propagate(where, direction="both")
    assert last == {"done": True, "frames": LENGTH}
    found = masks_of(lines)
    assert found.keys() == expected.keys()
    assert all((found[key] == expected[key]).all() for key in expected)
    assert any(mask.any() for mask in found.values())
    stored = [service.ask("GET", f"{where}/masks", params={"frame_index": index}).json() for index in range(LENGTH)]
    assert masks_of(stored).keys() == expected.keys()
    told = service.ask("GET", where).json()
    assert told["tracked"] == [[0, LENGTH - 1]]
    assert [each["object_id"] for each in told["objects"]] == [1, 7]
    archive = zipfile.ZipFile(io.BytesIO(service.ask("GET", f"{where}/export", params={"format": "png"}).content))
    assert len(archive.namelist()) == LENGTH
    labels = np.asarray(Image.open(io.BytesIO(archive.read("000003.png"))))
    assert set(np.unique(labels)) <= {0, 1, 7}
    picture = Image.open(io.BytesIO(service.ask("GET", f"{where}/frames/3").content))
    assert picture.size == SIZE
    assert counters(running, "sam2")["video_sessions"] == before + 1
    service.ask("DELETE", where, 204)
    service.ask("GET", where, 404)
    eventually(lambda: counters(running, "sam2")["video_sessions"] == before, "the server forgets the video")


def test_hanging_up_frees_the_session(service: VideoService, frames_file: Path) -> None:
    where = service.upload(frames_file.read_bytes())
    service.ask("POST", f"{where}/prompts", json=CLICK)
    with service.client() as client, client.stream("POST", f"/v1/videos{where}/propagate") as answer:
        next(answer.iter_lines())
    eventually(lambda: not service.ask("GET", where).json()["propagating"], "the propagation ends")
    assert len(service.propagate(where)) == LENGTH - 2 + 1
    service.ask("DELETE", where, 204)


def test_frames_of_a_camera(service: VideoService, running: RunningServer) -> None:
    async def run() -> list[dict[str, Any]]:
        address = service.address.replace("http://", "ws://") + "/v1/videos/live"
        async with websockets.connect(address, max_size=None, proxy=None) as socket:
            await socket.send(json.dumps({"open": {}}))
            await socket.send(json.dumps({"prompt": {key: CLICK[key] for key in ("object_id", "points", "labels")}}))
            for number in range(6):  # all at once: they wait for each other
                await socket.send(frame(number))
            return [json.loads(await socket.recv()) for _ in range(6)]

    found = masks_of(asyncio.run(run()))
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(iter([frame(number) for number in range(6)]))
        client.add_new_points_or_box(state, 0, 1, CLICK["points"], CLICK["labels"])
        for index, _, masks in client.propagate_in_video(state):
            assert (found[index, 1] == masks[0, 0]).all()
