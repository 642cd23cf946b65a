"""The benchmark of served videos, every part of it, on the real server with a small model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks import video_device
from benchmarks.video_device import _SERVED, PARTS, rate_of, write_frames
from tests.integration.serve_folder import serve_folder

pytestmark = [pytest.mark.triton, pytest.mark.torch]


@pytest.fixture(scope="module")
def server(video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), threads="1") as running:
        url = running.urls["HTTP"]
        yield SimpleNamespace(url=url, port=urlsplit(url).port, process=running.supervisor.process.process)


LONG = {"clicks", "growth"}
EACH = [
    pytest.param(part, marks=pytest.mark.part("bench")) if part in LONG else part for part in PARTS if part in _SERVED
]


@pytest.mark.parametrize("part", EACH)
def test_every_part_gives_figures(
    part: str, server: Any, video_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (160, 120)
    write_frames(tmp_path, Path("docs/images/coffee.png"), size)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(video_device, "say", lambda **figures: said.append(figures))
    numbers = {"frames": 6, "warm": 2, "clicks": 3, "long": 210, "window": 2, "state_every": 30}
    given = argparse.Namespace(folder=video_repository, size=size, objects=(1, 2), videos=(2,), **numbers)
    _SERVED[part](server, tmp_path, given)
    wanted = {"ready": 0, "objects": 2, "videos": 1, "clicks": 4, "client": 2, "growth": 1}
    assert len(said) == wanted[part]
    for figures in said:
        if part == "objects":
            assert figures["frame_ms"] > 0
            assert {"encode", "track", "answer"} <= figures["server_steps_ms"].keys()
        elif part == "videos":
            assert figures["frames_a_second"] > 0
        elif part == "growth":
            assert figures["long"] == 200
            assert figures["last"]["server"] > 0


def test_the_rate_of_several_videos_counts_while_all_of_them_run() -> None:
    steady = [number / 10 for number in range(101)]
    late = [2 + number / 10 for number in range(101)]
    assert rate_of([steady, late]) == pytest.approx(20)
