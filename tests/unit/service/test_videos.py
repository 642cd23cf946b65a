"""``/v1/videos`` before a server in memory: what each route does, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.unit.service.helpers import refusal
from tests.unit.service.video_helpers import (
    CLICK,
    VideoTransport,
    film_file,
    jpeg,
    lines_of,
    make_empty,
    mask_of,
    told,
    video_fake,
)
from tests.video_clips import HEIGHT, WIDTH, picture
from triton_sam.errors import InvalidInput, Unavailable


def is_square(mask: np.ndarray[Any, Any], index: int) -> bool:
    """Whether a mask is the red square of this frame, up to what JPEG blurs."""
    expected = (picture(index) == (225, 40, 40)).all(axis=2)
    return bool((mask & expected).sum() > 0.8 * (mask | expected).sum())


def test_a_file_from_upload_to_exports(tmp_path: Path) -> None:
    data = film_file(tmp_path)

    async def story(client: httpx.AsyncClient) -> None:
        made = await client.post("/v1/videos", files={"file": ('../a"b\u00e4.mp4', data)}, data={"axis": "t"})
        assert made.status_code == 201
        video = made.json()
        where = made.headers["location"]
        assert where == f"/v1/videos/{video.pop('id')}"
        assert video == {
            "model": "sam2:tiny",
            "name": "a%22b\u00e4.mp4",
            "width": WIDTH,
            "height": HEIGHT,
            "frames": 8,
            "fps": 25.0,
            "axis": "t",
            "contrast": None,
            "notes": [],
            "expires_in_seconds": 1800.0,
        }
        refusal(await client.get(f"{where}/export?format=png"), 409, "conflict")
        assert len((await client.post(f"{where}/prompts", json=CLICK)).json()["results"]) == 1
        lines = lines_of((await client.post(f"{where}/propagate")).text)
        assert [line.get("frame_index") for line in lines] == [*range(8), None]
        assert all(is_square(mask_of(line["results"][0]), line["frame_index"]) for line in lines[:-1])
        assert lines[-1] == {"done": True, "frames": 8}
        described = (await client.get(where)).json()
        assert described["tracked"] == [[0, 7]]
        assert described["presence"] == {"1": [[0, 7]]}
        prompt = {"frame_index": 0, "mask": False, "points": [[3.0, 3.0]], "labels": [1], "box": None}
        assert described["objects"] == [{"object_id": 1, "prompts": [prompt]}]
        stored = (await client.get(f"{where}/masks", params={"frame_index": 5})).json()
        assert stored == lines[5]
        found = await client.get(f"{where}/export?format=png")
        assert "a%2522b%C3%A4.zip" in found.headers["content-disposition"]
        archive = zipfile.ZipFile(io.BytesIO(found.content))
        assert archive.namelist() == [f"{index:06d}.png" for index in range(8)]
        labels = np.asarray(Image.open(io.BytesIO(archive.read("000003.png"))))
        assert is_square(labels == 1, 3)
        volume = tifffile.imread(io.BytesIO((await client.get(f"{where}/export?format=tiff")).content))
        assert volume.shape == (8, HEIGHT, WIDTH)
        assert (await client.get(f"{where}/export?format=mp4")).content[4:8] == b"ftyp"
        coco = (await client.get(f"{where}/export?format=coco")).json()
        assert len(coco["annotations"]) == 8
        assert len((await client.get(f"{where}/export?format=youtube_vis")).json()["annotations"][0]["bboxes"]) == 8
        assert (await client.delete(where)).status_code == 204
        for path in ("", "/frames/0", "/masks?frame_index=0", "/export?format=png"):
            assert "there is no such video" in refusal(await client.get(f"{where}{path}"), 404, "not_found")

    told(story)


def test_frames_and_thumbnails() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 2)}"
        found = await client.get(f"{where}/frames/1")
        assert found.content == jpeg(1)
        assert found.headers["cache-control"].startswith("private")
        again = await client.get(f"{where}/frames/1", headers={"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        small = Image.open(io.BytesIO((await client.get(f"{where}/frames/1?width=16")).content))
        assert (small.size, small.format) == ((16, 12), "JPEG")
        assert (await client.get(f"{where}/frames/1?width=4000")).content == jpeg(1)
        for path, status in (
            ("2", 404),
            ("-1", 400),
            ("x", 400),
            ("1?width=x", 400),
            ("1?width=99999", 400),
            ("1?q=1", 400),
        ):
            refusal(
                await client.get(f"{where}/frames/{path}"), status, "not_found" if status == 404 else "invalid_input"
            )
        assert "the video has 2 frames" in (await client.get(f"{where}/frames/2")).text

    told(story)


def test_frames_that_come_one_by_one() -> None:
    """PNG with an alpha channel is shown on white; wrong frames change nothing."""
    buffer = io.BytesIO()
    Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0)).save(buffer, "PNG")

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 1)}"
        assert (await client.put(f"{where}/frames/1", content=buffer.getvalue())).json() == {"frames": 2}
        shown = Image.open(io.BytesIO((await client.get(f"{where}/frames/1")).content))
        assert shown.getpixel((5, 5)) == (255, 255, 255)
        assert "send frame 2" in refusal(await client.put(f"{where}/frames/5", content=jpeg(5)), 409, "conflict")
        wrong = await client.put(f"{where}/frames/2", content=jpeg(2, 32, 32))
        assert "32 x 32 pixels and the video 64 x 48" in refusal(wrong, 400, "invalid_input")
        refusal(await client.put(f"{where}/frames/2", content=b""), 400, "invalid_input")
        refusal(await client.put(f"{where}/frames/2", content=b"no image"), 400, "invalid_input")
        assert (await client.put(f"{where}/frames/2", content=jpeg(2))).json() == {"frames": 3}
        await client.post(f"{where}/prompts", json=CLICK)
        assert lines_of((await client.post(f"{where}/propagate")).text)[-1] == {"done": True, "frames": 3}
        assert (await client.put(f"{where}/frames/3", content=jpeg(3))).json() == {"frames": 4}
        lines = lines_of((await client.post(f"{where}/propagate", json={"start_frame_index": 3})).text)
        assert [line.get("frame_index") for line in lines] == [3, None]

    told(story)


def test_corrections_and_their_end() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"

        async def prompt(**fields: Any) -> list[int]:
            answer = await client.post(f"{where}/prompts", json=fields)
            assert answer.status_code == 200, answer.text
            return [one["object_id"] for one in answer.json()["results"]]

        assert await prompt(**CLICK) == [1]
        assert await prompt(frame_index=2, object_id=9, box=[1, 1, 20, 20]) == [1, 9]
        mask = {"size": [HEIGHT, WIDTH], "counts": [10, 5, HEIGHT * WIDTH - 15]}
        assert await prompt(frame_index=2, object_id=3, mask=mask) == [1, 9, 3]
        added = {**CLICK, "points": [[5, 5]], "labels": [0], "clear_old_points": False}
        assert await prompt(**added) == [1, 9, 3]
        await client.post(f"{where}/propagate")
        told_of = {each["object_id"]: each["prompts"] for each in (await client.get(where)).json()["objects"]}
        assert told_of[1][0]["points"] == [[3.0, 3.0], [5.0, 5.0]]
        assert told_of[1][0]["labels"] == [1, 0]
        assert told_of[9][0]["box"] == [1.0, 1.0, 20.0, 20.0]
        assert told_of[3][0]["mask"] is True
        assert (await client.delete(f"{where}/objects/9")).status_code == 204
        assert (await client.delete(f"{where}/objects/9")).status_code == 404
        kept = (await client.get(f"{where}/masks?frame_index=4")).json()
        assert [one["object_id"] for one in kept["results"]] == [1, 3]
        cleared = await client.delete(f"{where}/prompts?frame_index=2&object_id=3")
        assert cleared.status_code == 200
        refusal(await client.post(f"{where}/propagate"), 409, "conflict")
        assert (await client.post(f"{where}/reset")).status_code == 204
        described = (await client.get(where)).json()
        assert (described["objects"], described["tracked"], described["presence"]) == ([], [], {})
        assert "nothing is prompted" in refusal(await client.post(f"{where}/propagate"), 409, "conflict")

    told(story)


DIRECTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"direction": "backward"}, [5, 4, 3, 2, 1, 0]),
    ({"direction": "backward", "start_frame_index": 3, "max_frames": 2}, [3, 2]),
    ({"direction": "both", "start_frame_index": 3}, [3, 4, 5, 6, 7, 2, 1, 0]),
    ({"direction": "both", "start_frame_index": 3, "max_frames": 2}, [3, 4, 2]),
    ({"direction": "both", "start_frame_index": 3, "max_frames": 1}, [3]),
    ({"start_frame_index": 6}, [6, 7]),
    ({"max_frames": 3}, [2, 3, 4]),
    ({}, [2, 3, 4, 5, 6, 7]),
]


def test_directions() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"
        for frame in (2, 5):
            await client.post(f"{where}/prompts", json={**CLICK, "frame_index": frame})
        for asked, frames in DIRECTIONS:
            lines = lines_of((await client.post(f"{where}/propagate", json=asked)).text)
            assert [line["frame_index"] for line in lines[:-1]] == frames, asked
            assert lines[-1] == {"done": True, "frames": len(frames)}

    told(story)


def test_slices_are_tracked_both_ways() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, axis='z')}"
        await client.post(f"{where}/prompts", json={**CLICK, "frame_index": 4})
        lines = lines_of((await client.post(f"{where}/propagate")).text)
        assert [line["frame_index"] for line in lines[:-1]] == [4, 5, 6, 7, 3, 2, 1, 0]

    told(story)


def test_a_stream_as_metas_demo_has_it() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 3)}"
        await client.post(f"{where}/prompts", json=CLICK)
        answer = await client.post(f"{where}/propagate", headers={"Accept": "multipart/x-savi-stream"})
        assert answer.headers["content-type"] == "multipart/x-savi-stream; boundary=frame"
        parts = answer.content.split(b"--frame\r\n")
        assert parts.pop(0) == b""
        assert len(parts) == 3
        for index, part in enumerate(parts):
            head, _, body = part.partition(b"\r\n\r\n")
            assert head.split(b"\r\n") == [
                b"Content-Type: application/json; charset=utf-8",
                b"Frame-Current: -1",
                b"Frame-Total: -1",
                b"Mask-Type: RLE[]",
                b"Content-Length: %d" % len(body),
            ]
            document = json.loads(body)
            assert document["frame_index"] == index
            assert set(document["results"][0]) == {"object_id", "mask"}

    told(story)


def test_one_propagation_at_a_time_until_it_is_cancelled() -> None:
    fake = video_fake()
    transport = fake.transport
    assert isinstance(transport, VideoTransport)

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"
        await client.post(f"{where}/prompts", json=CLICK)
        transport.hold_from = 3
        running = asyncio.create_task(client.post(f"{where}/propagate"))
        while not transport.held:
            await asyncio.sleep(0.001)
        refusal(await client.post(f"{where}/propagate"), 409, "conflict")
        assert (await client.get(where)).json()["propagating"]
        assert (await client.post(f"{where}/cancel")).json() == {"cancelled": True}
        lines = lines_of((await running).text)
        assert lines[-1] == {"cancelled": True, "frames": 3}
        assert (await client.post(f"{where}/cancel")).json() == {"cancelled": False}
        tracks = transport.done("track")
        assert len(tracks) <= 4, "nothing was begun behind the frame that waits"
        transport.release()
        assert lines_of((await client.post(f"{where}/propagate")).text)[-1] == {"done": True, "frames": 8}
        assert (await client.get(where)).json()["tracked"] == [[0, 7]]

    told(story, fake)


def test_an_error_on_the_way_is_the_last_line(tmp_path: Path) -> None:
    fake = video_fake()
    fake.transport.faults = {6: InvalidInput("frame 3 is damaged")}  # type: ignore[attr-defined]

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"
        await client.post(f"{where}/prompts", json=CLICK)
        *lines, last = lines_of((await client.post(f"{where}/propagate")).text)
        assert 0 < len(lines) < 8
        assert last["error"]["message"] == "frame 3 is damaged"
        assert not (await client.get(where)).json()["propagating"]

    told(story, fake)


@pytest.mark.parametrize("what", ["killed", "expired"])
def test_a_lost_session_comes_back(what: str) -> None:
    fake = video_fake()
    fake.transport.faults = {5: what, 9: Unavailable("the model is loading")}  # type: ignore[attr-defined]

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"
        await client.post(f"{where}/prompts", json=CLICK)
        lines = lines_of((await client.post(f"{where}/propagate")).text)
        assert [line.get("frame_index") for line in lines] == [*range(8), None]

    told(story, fake)


def test_a_lost_server_is_told_at_once() -> None:
    fake = video_fake()
    transport = fake.transport
    assert isinstance(transport, VideoTransport)

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client)}"
        await client.post(f"{where}/prompts", json=CLICK)
        transport.hold_from = 2
        running = asyncio.create_task(client.post(f"{where}/propagate"))
        while not transport.held:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(fake.lose, "a worker has ended")
        transport.kill()
        transport.release()
        fake.state = "ready"
        assert lines_of((await running).text)[-1] == {"done": True, "frames": 8}

    told(story, fake)
