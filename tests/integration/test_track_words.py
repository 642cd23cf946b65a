"""`triton-sam track --text` on the real server: what words find in a frame is what the tracker is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import expected_instances, scene
from tests.integration.reference import iou
from tests.integration.serve_folder import serve_folder
from tests.unit.cli.helpers import run_process
from triton_sam import SAM2VideoClient
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
COUNT, FIRST, EVERY = 8, 2, 3


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A small random network that tracks, and the model that finds colours."""
    folder = tmp_path_factory.mktemp("words")
    repository = Path(shutil.copytree(video_repository, folder / "repository"))
    write_analytic_concepts(repository, folder / "graphs", name="sam2_tiny")
    with serve_folder(repository, folder / "home", threads="1") as started:
        yield started


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing in the first frames, and then three red things that stay where they are."""
    folder = tmp_path_factory.mktemp("frames")
    for number in range(COUNT):
        picture = scene() if number >= FIRST else Image.new("RGB", scene().size, "white")
        picture.save(folder / f"{number}.png")
    return folder


def track(running: RunningServer, video: Path, folder: Path, *words: str) -> Any:
    outputs = [word for name in ("masks/", "c.json") for word in ("--out", f"{folder}/{name}")]
    return run_process("track", str(video), *words, *outputs, "--url", running.urls["HTTP"])


def test_what_is_found_is_tracked(running: RunningServer, video: Path, tmp_path: Path) -> None:
    ended = track(running, video, tmp_path, "--text", "red", "--text", "green", "--text-frame", str(FIRST))
    assert ended.code == 0, ended.err
    assert f"3 objects (3 red, 0 green) in {COUNT} frames" in ended.out
    document = json.loads((tmp_path / "c.json").read_text())
    assert [category["name"] for category in document["categories"]] == ["red"]
    assert [one["object"] for one in document["annotations"]] == [1, 2, 3]
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(video)
        for one, expected in zip(document["annotations"], expected_instances(scene(), "red"), strict=True):
            assert not any(one["segmentations"][:FIRST]), "nothing is tracked before"
            there = expected.logits > 0
            _, names, masks = client.add_new_mask(state, FIRST, one["object"], there)
            given = from_rle(one["segmentations"][FIRST])
            assert iou(given, masks[names.index(one["object"]), 0] > 0) > 0.99, "as if a user had given these masks"
            assert iou(given, there) > 0.85, "the small network has coarse masks"


def test_what_comes_later(running: RunningServer, video: Path, tmp_path: Path) -> None:
    """Nothing is there in the first frame: it is looked again in frames 3 and 6."""
    ended = track(running, video, tmp_path, "--text", "red", "--every", str(EVERY))
    assert ended.code == 0, ended.err
    document = json.loads((tmp_path / "c.json").read_text())
    firsts = [next(at for at, mask in enumerate(one["segmentations"]) if mask) for one in document["annotations"]]
    assert firsts[:3] == [EVERY] * 3
    assert set(firsts) <= {EVERY, 2 * EVERY}
    labels = [np.asarray(Image.open(tmp_path / "masks" / f"{number}.png")) for number in range(COUNT)]
    assert [bool(image.any()) for image in labels[: EVERY + 1]] == [False] * EVERY + [True]


def test_nothing_is_found(running: RunningServer, video: Path, tmp_path: Path) -> None:
    ended = track(running, video, tmp_path, "--text", "green", "--text-frame", str(FIRST))
    assert ended.code == 1
    assert ended.err.strip().splitlines()[-1] == (
        f"error: nothing of that was found in frame {FIRST}: look in another frame, look again every some frames, "
        "or lower the score threshold"
    )
    ended = track(running, video, tmp_path, "--text", "red", "--text-frame", "99")
    assert ended.code == 1
    assert "99" in ended.err
    ended = track(running, video, tmp_path, "--text", "red blue " * 10)
    assert ended.code == 1
    assert "12 are the most: use fewer words" in ended.err
