"""``triton-sam track --text``: what words find is tracked; a run that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.unit.cli.helpers import Run
from tests.unit.client.video_server import FakeVideoServer
from tests.video_clips import HEIGHT, WIDTH, by_object, picture
from triton_sam.cli import track_words
from triton_sam.cli.track_words import TrackWords
from triton_sam.core.rle import rle
from triton_sam.video.clip import ClipFrame
from triton_sam.video.identities import FoundInstance
from triton_sam.video.results import ResultFile

SIZE, FRAMES = (WIDTH, HEIGHT), 12
Found = dict[int, list[tuple[int, int, float]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frames = tmp_path / "frames"
    frames.mkdir()
    for index in range(FRAMES):
        Image.fromarray(picture(index)).save(frames / f"{index:03}.png")
    return frames


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``found``: frame -> (object that the server draws there, concept, score), until the next entry."""
    plan: dict[str, Any] = {"found": {0: [(1, 0, 0.9), (2, 1, 0.8)]}, "asked": [], "words": None}

    def find(frame: ClipFrame) -> Sequence[FoundInstance]:
        plan["asked"].append(frame.index)
        known = max((index for index in plan["found"] if index <= frame.index), default=None)
        listed = plan["found"][known] if known is not None else []
        return [
            FoundInstance(concept, score, rle(by_object(frame.data, thing, 0, SIZE)))
            for thing, concept, score in listed
        ]

    @contextmanager
    def finder(urls: object, given: TrackWords, *_: object) -> Iterator[Any]:
        plan["words"] = given
        yield find

    monkeypatch.setattr(track_words, "word_finder", finder)
    return plan


def test_each_word_is_a_category(server: FakeVideoServer, run: Run, folder: Path, words: dict[str, Any]) -> None:
    out = folder.parent / "masks.json"
    done = run(str(folder), "--text", "fish", "--text", "coral", "--json", "coco", "--out", str(out))
    assert done.code == 0, done.err
    assert "2 objects (1 fish, 1 coral) in 12 frames" in done.out
    assert words["asked"] == [0]
    assert words["words"] == TrackWords(("fish", "coral"), model="sam3")
    coco = json.loads(out.read_text())
    assert [category["name"] for category in coco["categories"]] == ["fish", "coral"]
    assert {(one["track_id"], one["category_id"]) for one in coco["annotations"]} == {(1, 1), (2, 2)}


def test_looks_again(server: FakeVideoServer, run: Run, folder: Path, words: dict[str, Any]) -> None:
    words["found"] = {4: [(1, 0, 0.9)], 8: [(1, 0, 0.9), (2, 0, 0.9)]}
    out = folder.parent / "masks.json"
    done = run(str(folder), "--text", "fish", "--every", "4", "--out", str(out))
    assert done.code == 0, done.err
    assert words["asked"] == [0, 4, 8]
    (first, second) = json.loads(out.read_text())["annotations"]
    assert [mask is not None for mask in first["segmentations"]] == [False] * 4 + [True] * 8
    assert [mask is not None for mask in second["segmentations"]] == [False] * 8 + [True] * 4


def test_nothing_is_found(server: FakeVideoServer, run: Run, folder: Path, words: dict[str, Any]) -> None:
    words["found"] = {}
    done = run(str(folder), "--text", "fish", "--out", str(folder.parent / "masks.json"))
    assert done.code != 0
    assert "nothing of that was found in frame 0" in done.err


def test_both_ways_from_the_frame_with_words(
    server: FakeVideoServer, run: Run, folder: Path, words: dict[str, Any]
) -> None:
    words["found"] = {5: [(1, 0, 0.9)]}
    out = folder.parent / "masks.json"
    done = run(str(folder), "--text", "fish", "--text-frame", "5", "--both", "--out", str(out))
    assert done.code == 0, done.err
    assert words["asked"] == [5]
    first = json.loads(out.read_text())["annotations"][0]
    assert all(mask is not None for mask in first["segmentations"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--text", " "], "text is empty"),
        (["--text", "fish", "--point", "0,1,1"], "leave --point, --box and --mask out"),
        (["--text", "fish", "--reverse"], "use --both"),
        (["--text", "fish", "--text-frame", "99"], "99"),
        (["--point", "0,1,1", "--every", "3"], "add --text"),
    ],
)
def test_what_cannot_be(
    server: FakeVideoServer, run: Run, folder: Path, words: dict[str, Any], options: list[str], reason: str
) -> None:
    done = run(str(folder), *options, "--out", str(folder.parent / "masks.json"))
    assert done.code != 0
    assert reason in done.err
    assert words["asked"] == []


@pytest.mark.parametrize("every", [3, 5])
def test_a_stopped_run_goes_on_and_finds_the_same(
    server: FakeVideoServer,
    run: Run,
    folder: Path,
    words: dict[str, Any],
    every: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words["found"] = {0: [(1, 0, 0.9)], 6: [(1, 0, 0.9), (2, 0, 0.9)]}
    whole, out = folder.parent / "whole.json", folder.parent / "masks.json"
    options = ["--text", "fish", "--every", str(every), "--state-every", "2", "--json", "coco"]
    assert run(str(folder), *options, "--out", str(whole)).code == 0
    expected = json.loads(whole.read_text())

    add = ResultFile.add

    def adding(results: ResultFile, frame: Any) -> None:
        add(results, frame)
        if frame.index == 9:
            monkeypatch.setattr(ResultFile, "add", add)
            raise KeyboardInterrupt

    monkeypatch.setattr(ResultFile, "add", adding)
    stopped = run(str(folder), *options, "--out", str(out))
    assert stopped.code == 130, stopped.err
    assert run(str(folder), *options, "--out", str(out)).code == 0
    assert words["asked"].count(0) == 2  # the run that went on did not begin again
    assert json.loads(out.read_text())["annotations"] == expected["annotations"]
