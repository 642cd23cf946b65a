"""The real server with a small network that remembers, its service with settings of its own, and a client of that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from triton_sam.core.rle import BoolArray, from_rle
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

#: Of the frames of tests.video_serving.
CLICK: dict[str, Any] = {"frame_index": 0, "object_id": 1, "points": [[60, 50]], "labels": [1]}


@contextlib.contextmanager
def serving_videos(repository: Path, home: Path, **settings: Any) -> Iterator[RunningServer]:
    """Serves all models of a repository; ``settings`` are the service's."""
    segmenters = find_segmenters(repository)
    options = ServingOptions(
        repository,
        segmenters,
        Settings(home=home, **settings),
        ports=Ports(0, 0, 0, 0),
        environment={"TRITON_SAM_THREADS": "1"},
    )
    with serving(options) as running:
        yield running


class VideoService:
    """Requests about videos, each on a connection of its own, which any process of the service may get."""

    def __init__(self, address: str) -> None:
        self.address = address

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=120, trust_env=False)

    def ask(self, method: str, path: str, status: int = 200, **request: Any) -> httpx.Response:
        with self.client() as client:
            answer = client.request(method, f"/v1/videos{path}", **request)
        assert answer.status_code == status, f"{answer.status_code}: {answer.text[:500]}"
        return answer

    def upload(self, data: bytes, name: str = "film.webp", **fields: str) -> str:
        """The address of a new video."""
        made = self.ask("POST", "", 201, files={"file": (name, data)}, data=fields).json()
        return f"/{made['id']}"

    def propagate(self, where: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of a propagation."""
        return lines_of(self.ask("POST", f"{where}/propagate", json=fields).text)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def masks_of(lines: list[dict[str, Any]]) -> dict[tuple[int, int], BoolArray]:
    """(frame, object) -> mask."""
    return {(line["frame_index"], one["object_id"]): from_rle(one["mask"]) for line in lines for one in line["results"]}
