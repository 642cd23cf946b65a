"""The service in front of a server in memory that acts out the protocol of videos."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from tests.unit.client.video_server import Draw, FakeVideoServer
from tests.unit.service.helpers import SEGMENTERS, Fake, client_of, listening
from tests.video_clips import HEIGHT, WIDTH, picture, red_square, write_video
from triton_sam.client.wire import Call, Outputs
from triton_sam.core.video.memory_traits import MemoryTraits

Story = Callable[[httpx.AsyncClient], Awaitable[None]]
CLICK: dict[str, Any] = {"frame_index": 0, "object_id": 1, "points": [[3, 3]], "labels": [1]}


class VideoTransport(FakeVideoServer):
    """As the gateway's connection. Tracks of frames from ``hold_from`` on are not answered before :meth:`release`."""

    hold_from: int | None = None
    held = 0

    async def infer(self, call: Call) -> Outputs:
        video = json.loads(call.inputs["prompt_json"][0])["video"]
        if self.hold_from is not None and video["do"] == "track" and video["frame"] >= self.hold_from:
            self.held += 1
            while self.hold_from is not None:
                await asyncio.sleep(0.001)
        return await super().infer(call)

    def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        raise NotImplementedError

    def release(self) -> None:
        self.hold_from = None


def video_fake(draw: Draw = red_square) -> Fake:
    """A server with one model that remembers."""
    remembering = {**SEGMENTERS, "sam2": dataclasses.replace(SEGMENTERS["sam2"], memory=MemoryTraits())}
    return Fake(transport=VideoTransport(draw=draw), segmenters=remembering)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def video_client(fake: Fake | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(fake or video_fake(), **settings) as client:
        yield client


@contextlib.contextmanager
def video_service(fake: Fake | None = None, **settings: Any) -> Iterator[httpx.Client]:
    """A real service on a port."""
    with (
        listening(fake or video_fake(), **settings) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client,
    ):
        yield client


def jpeg(index: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(index, width, height)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def film_file(folder: Path, count: int = 8, **options: Any) -> bytes:
    return write_video(folder / "film.mp4", count, **options).read_bytes()


async def make_empty(client: httpx.AsyncClient, frames: int = 8, **fields: Any) -> str:
    """The id of a video whose frames were sent one by one."""
    made = await client.post("/v1/videos", json={"width": WIDTH, "height": HEIGHT, **fields})
    assert made.status_code == 201, made.text
    name: str = made.json()["id"]
    for index in range(frames):
        answer = await client.put(f"/v1/videos/{name}/frames/{index}", content=jpeg(index))
        assert answer.json() == {"frames": index + 1}, answer.text
    return name


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def mask_of(result: dict[str, Any]) -> np.ndarray[Any, Any]:
    from triton_sam.core.rle import from_rle

    return from_rle(result["mask"])


def told(story: Story, fake: Fake | None = None, **settings: Any) -> None:
    """Runs a story against an application of its own."""

    async def run() -> None:
        async with video_client(fake, **settings) as client:
            await story(client)

    asyncio.run(run())
