"""`triton-sam track` on the real server: everything that is written, and a run that was killed goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from tests.integration.serve_folder import serve_folder
from tests.unit.cli.helpers import run_process
from tests.video_serving import SIZE, frame
from tests.waiting import eventually
from triton_sam import SAM2VideoClient
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
COUNT = 24
PROMPTS = ("--point", "8,60,50", "--box", "10,90,20,150,90,7", "--both", "--state-every", "4")


@pytest.fixture(scope="module")
def running(
    video_repository: Path,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), threads="1") as started:
        yield started


def words(video: Path, folder: Path, running: RunningServer) -> list[str]:
    folder.mkdir(exist_ok=True)
    outputs = [word for name in ("o.mp4", "masks/", "c.json") for word in ("--out", f"{folder}/{name}")]
    return ["track", str(video), *PROMPTS, *outputs, "--url", running.urls["HTTP"]]


def written(folder: Path) -> dict[str, bytes]:
    """All results but the overlay, whose encoder is free to differ from run to run."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "o.mp4")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    for number in range(COUNT):
        (folder / f"{number}.jpg").write_bytes(frame(number))
    return folder


@pytest.fixture(scope="module")
def whole(video: Path, running: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run without faults."""
    folder = tmp_path_factory.mktemp("whole")
    ended = run_process(*words(video, folder, running))
    assert ended.code == 0, ended.err
    assert f"2 objects in {COUNT} frames" in ended.out
    return folder


def test_the_files_have_what_the_client_returns(running: RunningServer, video: Path, whole: Path) -> None:
    expected = np.zeros((COUNT, 2, SIZE[1], SIZE[0]), bool)
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(video)
        client.add_new_points_or_box(state, 8, 1, [[60, 50]], [1])
        client.add_new_points_or_box(state, 10, 7, box=[90, 20, 150, 90])
        for reverse, first in ((False, 8), (True, 7)):
            for index, names, masks in client.propagate_in_video(state, first, reverse=reverse):
                assert names == [1, 7]
                expected[index] = masks[:, 0]
    assert expected.any(axis=(1, 2, 3)).all()
    found = np.zeros_like(expected)
    for entry in json.loads((whole / "c.json").read_text())["annotations"]:
        for index, mask in enumerate(entry["segmentations"]):
            found[index, (1, 7).index(entry["object"])] = False if mask is None else coco.decode(mask)
    np.testing.assert_array_equal(found, expected)
    for index in range(COUNT):
        labels = np.asarray(Image.open(whole / "masks" / f"{index}.png"))
        one, seven = expected[index]
        drawn = np.zeros_like(labels)
        for name, mask in sorted(((1, one), (7, seven)), key=lambda object_: -object_[1].sum()):
            drawn[mask] = name  # the smaller one is on top
        np.testing.assert_array_equal(labels, drawn)
    with av.open(str(whole / "o.mp4")) as overlay:
        assert [shown.width for shown in overlay.decode(video=0)] == [SIZE[0]] * COUNT


def test_a_killed_run_goes_on_and_writes_what_one_without_faults_does(
    running: RunningServer, video: Path, whole: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-m", "triton_sam.cli", *words(video, tmp_path, running)])
    try:
        results = tmp_path / ".o.mp4.track"
        eventually((results / "state.bin").exists, "the run has kept a state", pause=0.001)
    finally:
        process.kill()
        process.wait()
    assert {path.name for path in tmp_path.iterdir()} == {results.name}
    ended = run_process(*words(video, tmp_path, running))
    assert ended.code == 0, ended.err
    assert written(tmp_path) == written(whole)
    assert {path.name for path in tmp_path.iterdir()} == {"c.json", "masks", "o.mp4"}
