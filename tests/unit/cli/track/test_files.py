"""Odd and hostile files through `triton-sam track`: each is a right result or one clear sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import pytest
from pycocotools import mask as coco

from tests.unit.cli.helpers import assert_one_sentence, run_main
from tests.unit.cli.track.odd_files import RIGHT, SIDE, TIMES, WRONG
from tests.unit.client.video_server import FakeVideoServer, reached
from tests.video_clips import (
    red_square,
    write_folder,
    write_video,
)
from triton_sam.client import video_client
from triton_sam.video.opening import open_clip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeVideoServer:
    found = FakeVideoServer(draw=red_square)
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(found))
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_result(
    name: str,
    server: FakeVideoServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = RIGHT[name]
    outputs = ("--out", "o.mp4", "--out", "masks/", "--out", "c.json", "--json", "coco", "--both")
    (tmp_path / "in").mkdir()
    path = case.make(tmp_path / "in")
    ended = run_main("track", path, "--point", case.prompt, *outputs, monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 0, ended.err
    assert case.told in ended.err
    assert bool(case.told) == bool(ended.err)
    document = json.loads(Path("c.json").read_text())
    frames = len(document["images"])
    assert frames == case.frames or (case.frames < 0 and 5 < frames < 60)
    assert {(image["width"], image["height"]) for image in document["images"]} == {case.size}
    assert len(list(Path("masks").glob("*.png"))) == frames
    with av.open("o.mp4") as overlay:
        assert sum(1 for _ in overlay.decode(video=0)) == frames
    if case.has_square:
        assert [entry["image_id"] for entry in document["annotations"]] == list(range(1, frames + 1))
        for index, entry in enumerate(document["annotations"]):
            assert coco.toBbox(entry["segmentation"]) == pytest.approx([*case.corner(index), SIDE, SIDE], abs=2)
            assert 0.8 * SIDE**2 < coco.area(entry["segmentation"]) < 1.3 * SIDE**2
    left = {path.name for path in Path().iterdir()}
    assert left - {"home"} == {"c.json", "in", "masks", "o.mp4"}


@pytest.mark.parametrize("name", WRONG)
def test_one_clear_sentence(
    name: str,
    server: FakeVideoServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = WRONG[name]
    path = case.make(tmp_path)
    (tmp_path / "out").mkdir()
    outputs = [word for name in ("o.mp4", "masks/", "c.json") for word in ("--out", f"{tmp_path}/out/{name}")]
    words = ("--point", case.prompt, *case.options, *outputs)
    ended = run_main("track", path, *words, monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, case.told.format(path))
    assert [left.name for left in (tmp_path / "out").iterdir() if not left.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (("f/",), "--out f would replace f/0.png, which is read"),
        (("f",), "--out f would replace f/0.png, which is read"),
        (("v.mp4",), "--out v.mp4 would replace v.mp4, which is read"),
        (("f/m.json", "/proc/o.mp4"), "results cannot be kept in /proc/.o.mp4.track"),
    ],
)
def test_what_is_read_is_not_replaced(
    outputs: tuple[str, ...], told: str, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write_folder(Path("f"), ["0.png", "1.png"])
    before = write_video(Path("v.mp4")).read_bytes()
    words = [word for output in outputs for word in ("--out", output)]
    name = "v.mp4" if "v.mp4" in outputs else "f"
    ended = run_main("track", name, "--point", "0,4,4", *words, monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, told)
    assert Path("v.mp4").read_bytes() == before
    assert sorted(path.name for path in Path("f").iterdir()) == ["0.png", "1.png"]
    assert not server.calls


def test_results_inside_the_folder_of_frames(
    server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write_folder(Path("f"), ["0.png", "1.png"])
    words = ("track", "f", "--point", "0,4,4", "--out", "f/labels/", "--out", "f/o.mp4", "--out", "f/c.json")
    for _ in range(2):
        ended = run_main(*words, monkeypatch=monkeypatch, capsys=capsys)
        assert (ended.code, ended.out) == (0, "1 object in 2 frames: f/o.mp4, f/labels, f/c.json\n")
    assert len(list(Path("f/labels").iterdir())) == 2


def test_times_are_kept(server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_video(Path("v.mp4"), times=TIMES)
    assert run_main("track", "v.mp4", "--point", "0,4,4", monkeypatch=monkeypatch, capsys=capsys).code == 0
    with av.open("overlay.mp4") as overlay:
        times = [frame.time for frame in overlay.decode(video=0)]
    assert times == pytest.approx([time / 1000 for time in TIMES], abs=0.002)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the kernel's threads")
def test_frames_leave_no_threads_behind(tmp_path: Path) -> None:
    """Converters of PyAV have threads, whose stacks count as memory where that is limited."""
    path = write_video(tmp_path / "clip.mp4", 40)
    counts = [sum(1 for _ in Path("/proc/self/task").iterdir()) for _ in open_clip(path).frames()]
    assert max(counts) - counts[0] < 5
