"""The clip of ``triton-sam demo --video``, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.client.video_server import FakeVideoServer, reached
from triton_sam.cli import demo, demo_video
from triton_sam.client import video_client
from triton_sam.core.rle import rle
from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, VIDEO_MODEL, get_spec
from triton_sam.server import host
from triton_sam.settings import Settings
from triton_sam.video.demo_clip import CLICK, FRAMES, HEIGHT, WIDTH, DrawnFrame, drawn_frames
from triton_sam.video.found import FoundObject, VideoFrame


@pytest.fixture(scope="module")
def drawn() -> list[DrawnFrame]:
    return list(drawn_frames())


def test_the_clip(drawn: list[DrawnFrame]) -> None:
    assert len(drawn) == FRAMES
    assert all(frame.picture.size == (WIDTH, HEIGHT) and frame.picture.mode == "RGB" for frame in drawn)
    assert all(frame.mask.shape == (HEIGHT, WIDTH) for frame in drawn)
    assert drawn[0].mask[round(CLICK[1]), round(CLICK[0])]
    seen = [np.count_nonzero(frame.mask) for frame in drawn]
    assert seen[0] > 10_000
    whole = np.linspace(seen[0], seen[-1], FRAMES)  # it grows
    assert 0.5 < (seen / whole).min() < 0.8, "hidden in part, never whole"
    assert 10 < int((seen / whole).argmin()) < FRAMES - 5
    last = drawn[-1].mask
    assert seen[-1] > 1.3 * seen[0]
    assert not (last & drawn[0].mask).any(), "it moves away from where it was"
    assert not last[:, [0, -1]].any()
    assert not last[[0, -1]].any()


def test_the_clip_is_the_same_each_time(drawn: list[DrawnFrame]) -> None:
    for number, again in zip(range(3), drawn_frames(), strict=False):
        assert again.picture.tobytes() == drawn[number].picture.tobytes()
        np.testing.assert_array_equal(again.mask, drawn[number].mask)


def test_the_background_moves(drawn: list[DrawnFrame]) -> None:
    first, last = np.asarray(drawn[0].picture, int), np.asarray(drawn[-1].picture, int)
    away = ~(drawn[0].mask | drawn[-1].mask)
    away[170:, 300:440] = False  # the wall stays
    assert (np.abs(first - last).sum(axis=2)[away] > 30).mean() > 0.5


def found(number: int, mask: Any) -> VideoFrame:
    objects = {1: FoundObject(rle(mask), 0.9, 3.0)} if mask.any() else {}
    return VideoFrame(number, number / 10, objects, (WIDTH, HEIGHT))


def test_overlaps(drawn: list[DrawnFrame]) -> None:
    frame, nothing = drawn[0], np.zeros((HEIGHT, WIDTH), np.bool_)
    assert demo_video.overlap(frame, found(0, frame.mask)) == 1
    assert demo_video.overlap(frame, found(0, nothing)) == 0
    assert demo_video.overlap(frame, found(0, ~frame.mask)) == 0
    half = frame.mask & (np.arange(WIDTH) < CLICK[0])
    assert demo_video.overlap(frame, found(0, half)) == half.sum() / frame.mask.sum()
    assert demo_video.overlap(DrawnFrame(frame.picture, nothing), found(0, nothing)) == 1


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[DrawnFrame]) -> None:
    """With a server whose masks are squares somewhere: files, figures and lines."""
    monkeypatch.setattr(demo_video, "drawn_frames", lambda: iter(drawn[:5]))
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(FakeVideoServer()))
    result = demo_video.run_video_demo("here:1", "sam2_tiny_video", VIDEO_MODEL, tmp_path / "demo")
    assert len(result.overlaps) == 5
    assert all(0 <= one <= 1 for one in result.overlaps)
    with Image.open(tmp_path / "demo" / "frames.png") as sheet:
        assert sheet.size == (4 * WIDTH // 2, 3 * HEIGHT // 2)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"clip.mp4", "overlay.mp4", "frames.png"}
    for words in (VIDEO_MODEL, "5 frames", "J against the known masks", "s a frame", "frames.png", "overlay.mp4"):
        assert words in result.text


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(SetupError, match="give another --folder"):
        demo_video.run_video_demo("here:1", "x", VIDEO_MODEL, tmp_path / "demo" / "inner")


def test_the_models_of_the_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path)
    monkeypatch.setattr(host, "check_platform", lambda: None)
    assert demo.choose_models(settings, vlm=False) == [DEFAULT_MODEL]
    assert demo.choose_models(settings, vlm=False, video=True) == [VIDEO_MODEL]
    there = {"sam2_tiny_video": get_spec(VIDEO_MODEL)}
    monkeypatch.setattr(demo, "find_segmenters", lambda _: there)
    assert demo.choose_models(settings, vlm=False) == [DEFAULT_MODEL]
    there["sam2"] = get_spec("sam2.1:tiny")
    assert demo.choose_models(settings, vlm=True)[0] == "sam2.1:tiny"


def test_without_pyav_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SetupError("video files need PyAV: pip install '.[video]'")

    monkeypatch.setattr(host, "check_platform", lambda: None)
    monkeypatch.setattr(demo, "pyav", refuse)
    with pytest.raises(SetupError, match="PyAV"):
        demo.choose_models(Settings(home=tmp_path), vlm=False, video=True)
