"""``/v1/videos``: whose a video is, how many there may be, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.service.helpers import Fake, ask, refusal
from tests.unit.service.video_helpers import CLICK, jpeg, make_empty, told, video_fake
from tests.video_clips import HEIGHT, WIDTH
from triton_sam.service.videos.frame_store import FrameStore
from triton_sam.service.videos.results import StoredResults

ALICE, BOB = ({"Authorization": f"Bearer a-long-word-for-{name}"} for name in ("alice", "bob"))


def test_videos_belong_to_their_callers(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{name} a-long-word-for-{name}\n" for name in ("alice", "bob")))
    tokens.chmod(0o600)

    async def story(client: httpx.AsyncClient) -> None:
        refusal(await client.post("/v1/videos", json={"width": 8, "height": 8}), 401, "not_authorised")
        made = await client.post("/v1/videos", json={"width": 8, "height": 8}, headers=ALICE)
        where = made.headers["location"]
        listed = (await client.get("/v1/videos", headers=ALICE)).json()["videos"]
        assert [video["id"] for video in listed] == [made.json()["id"]]
        assert (await client.get("/v1/videos", headers=BOB)).json() == {"videos": []}
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("POST", "/propagate"),
            ("GET", "/frames/0"),
        ):
            refusal(await client.request(method, f"{where}{path}", headers=BOB), 404, "not_found")
        assert (await client.delete(where, headers=ALICE)).status_code == 204

    told(story, tokens_file=tokens)


def test_without_tokens_there_is_no_list() -> None:
    assert "needs API tokens" in refusal(ask("GET", "/v1/videos", video_fake()), 404, "not_found")


def test_places_are_limited() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        first = await make_empty(client, 0)
        await make_empty(client, 0)
        answer = await client.post("/v1/videos", json={"width": 8, "height": 8})
        assert "you have 2 videos here" in refusal(answer, 429, "queue_full")
        await client.delete(f"/v1/videos/{first}")
        await make_empty(client, 0)

    told(story, video_open_per_caller=2)


def test_bytes_are_limited() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 1)}"
        answer = await client.put(f"{where}/frames/1", content=jpeg(1) + bytes(5000))
        assert "there is no room for more videos" in refusal(answer, 429, "queue_full")
        assert (await client.put(f"{where}/frames/1", content=jpeg(1))).status_code == 200

    told(story, video_disk_bytes=10_000)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **_others: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 2)}"
        assert (await client.post(f"{where}/prompts", json=CLICK)).status_code == 200
        await client.post(f"{where}/propagate")
        calls: list[tuple[object, str, str, str, dict[str, Any]]] = [
            (FrameStore, "add", "PUT", "/frames/2", {"content": jpeg(2)}),
            (StoredResults, "add", "POST", "/prompts", {"json": CLICK}),
            (StoredResults, "copy_to", "GET", "/export?format=coco", {}),
            (StoredResults, "clear", "POST", "/reset", {}),
        ]
        for owner, name, method, path, body in calls:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, full)
                told_of = refusal(await client.request(method, f"{where}{path}", **body), 503, "unavailable")
            assert "no disk space for videos" in told_of
        assert (await client.put(f"{where}/frames/2", content=jpeg(2))).json() == {"frames": 3}

    told(story)


def test_a_video_that_nobody_uses_is_deleted() -> None:
    fake = video_fake()

    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 2)}"
        await client.post(f"{where}/prompts", json=CLICK)
        session = fake.transport.sessions  # type: ignore[attr-defined]
        assert len(session) == 1
        while (await client.get("/metrics")).text.count("triton_sam_service_videos 1.0"):
            await asyncio.sleep(0.01)
        refusal(await client.get(where), 404, "not_found")
        assert fake.transport.done("close"), "the server was told"  # type: ignore[attr-defined]

    told(story, fake, video_keep_seconds=0.1)


def test_metrics_tell_of_videos() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 2)}"
        await client.post(f"{where}/prompts", json=CLICK)
        await client.post(f"{where}/propagate")
        text = (await client.get("/metrics")).text
        found = dict(re.findall(r"^triton_sam_service_video_?(\w*) (\S+)$", text, re.MULTILINE))
        assert (found["s"], found["frames"], found["results_total"]) == ("1.0", "2.0", "2.0")
        assert float(found["bytes"]) >= len(jpeg(0)) + len(jpeg(1))
        await client.delete(where)
        assert "triton_sam_service_videos 0.0" in (await client.get("/metrics")).text
        labels = set(re.findall(r'route="(/v1/videos[^"]*)"', text))
        assert labels == {
            "/v1/videos",
            "/v1/videos/{video_id}/frames/{number}",
            "/v1/videos/{video_id}/prompts",
            "/v1/videos/{video_id}/propagate",
        }

    told(story)


def test_a_service_without_a_memory() -> None:
    told_of = refusal(ask("POST", "/v1/videos", Fake(), json={"width": 8, "height": 8}), 501, "not_served")
    assert "triton-sam serve sam2:tiny_video" in told_of
    assert "triton-sam setup sam2.1:tiny" in told_of
    upload = ask("POST", "/v1/videos", Fake(), files={"file": ("a.mp4", b"0")})
    assert refusal(upload, 501, "not_served") == told_of
    named = ask("POST", "/v1/videos", video_fake(), json={"width": 8, "height": 8, "model": "sam3"})
    assert "sam3:full does not remember videos" in refusal(named, 501, "not_served")


PROMPTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "nothing": ({"points": None, "labels": None}, 400, "the prompt is empty"),
    "no labels": ({"labels": None}, 400, "labels are missing"),
    "points as a text": ({"points": "3,3"}, 400, "points must be a list"),
    "points of texts": ({"points": [["a", "b"]]}, 400, "points must be numbers"),
    "NaN": ({"points": [[float("nan"), 1]]}, 400, "points"),
    "too many points": ({"points": [[1, 1]] * 999, "labels": [1] * 999}, 413, "999 points and 256 are allowed"),
    "a frame that is not there": ({"frame_index": 99}, 404, "there is no frame 99"),
    "a frame before the first": ({"frame_index": -1}, 400, "frame_index must be a whole number"),
    "no frame": ({"frame_index": None}, 400, "frame_index is missing"),
    "half an object": ({"object_id": 1.5}, 400, "object_id must be a whole number"),
    "object 0": ({"object_id": 0}, 400, "object_id must be a whole number from 1"),
    "an unknown field": ({"color": "red"}, 400, "the field 'color' is unknown"),
    "a mask and points": ({"mask": {"size": [1, 1], "counts": [1]}}, 400, "a mask stands alone"),
    "a flag as a text": ({"clear_old_points": "no"}, 400, "clear_old_points must be true or false"),
    "a box of three": ({"box": [1, 2, 3]}, 400, "box"),
}
MASKS: dict[str, tuple[Any, str]] = {
    "of another size": ({"size": [9, 9], "counts": [81]}, "9 x 9 pixels"),
    "that covers nothing": ({"size": [HEIGHT, WIDTH], "counts": [1]}, "does not cover"),
    "of a list": ([1, 2], "mask of video is"),
    "of huge counts": ({"size": [HEIGHT, WIDTH], "counts": [2**31 - 1] * 9}, "does not cover"),
    "of other texts": ({"size": [HEIGHT, WIDTH], "counts": "\u00e4" * 99}, "does not cover"),
}


def test_prompts_that_are_refused() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        where = f"/v1/videos/{await make_empty(client, 1)}"
        for what, (fields, status, message) in PROMPTS.items():
            body = json.dumps({key: value for key, value in {**CLICK, **fields}.items() if value is not None})
            answer = await client.post(f"{where}/prompts", content=body)
            assert answer.status_code == status, (what, answer.text)
            assert message in answer.json()["error"]["message"], what
        for what, (mask, message) in MASKS.items():
            answer = await client.post(f"{where}/prompts", json={"frame_index": 0, "object_id": 1, "mask": mask})
            assert answer.status_code == 400, (what, answer.text)
            assert message in answer.json()["error"]["message"], what
        for body in (b"", b"[]", b"{", b'{"frame_index": 0, "frame_index": 1}', b"[" * 300_000):
            assert (await client.post(f"{where}/prompts", content=body)).status_code in (400, 413)
        for fields, status in (({"direction": "up"}, 400), ({"max_frames": 0}, 400), ({"start_frame_index": 5}, 409)):
            assert (await client.post(f"{where}/propagate", json=fields)).status_code == status
        assert (await client.get(f"{where}/masks")).status_code == 400
        assert (await client.delete(f"{where}/prompts?frame_index=0")).status_code == 400
        assert (await client.get(f"{where}/export?format=exe")).status_code == 400
        assert (await client.get(where)).json()["objects"] == []

    told(story)


EMPTY: list[tuple[dict[str, Any], int]] = [
    ({"width": 0, "height": 8}, 400),
    ({"width": 8}, 400),
    ({"width": True, "height": 8}, 400),
    ({"width": 10**6, "height": 8}, 400),
    ({"width": 90_000, "height": 90_000}, 413),
    ({"width": 8, "height": 8, "axis": "q"}, 400),
    ({"width": 8, "height": 8, "path": "/"}, 400),
    ({"width": 8, "height": 8, "model": "no"}, 404),
    ({"width": 8, "height": 8, "name": 5}, 400),
]


def test_empty_videos_that_are_refused() -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for body, status in EMPTY:
            assert (await client.post("/v1/videos", json=body)).status_code == status, body

    told(story)
