"""`triton-sam track` on the real server: everything that is written, a run that was killed goes on, and a stack."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import dask.array
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image
from pycocotools import mask as coco

from tests.integration.serve_folder import serve_folder
from tests.stack_files import SIZES, imagej_tiff, ome_zarr, zarr
from tests.unit.cli.helpers import run_process
from tests.video_serving import SIZE, frame
from tests.waiting import eventually
from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient, save_labels
from triton_sam.core.images import EncodedImage
from triton_sam.serving import RunningServer
from triton_sam.video.found import VideoFrame
from triton_sam.video.opening import open_clip

pytestmark = [pytest.mark.triton, pytest.mark.torch]
COUNT = 24
SLICES, MIDDLE = 64, 32
#: The second object's number needs 16 bits.
STACK_PROMPTS = ("--point", f"{MIDDLE},60,50", "--box", f"{MIDDLE},90,20,150,90,300")
Labels = npt.NDArray[Any]
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


# -- a stack ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def values() -> npt.NDArray[np.uint16]:
    """[N,H,W]: blobs that wander, in 12 bits of 16."""
    found = []
    for number in range(SLICES):
        picture = EncodedImage(frame(number), max_bytes=2**20, max_pixels=2**20).pixels()
        found.append(np.asarray(picture.convert("L")).astype(np.uint16) * 15 + 200)
    return np.stack(found)


@pytest.fixture(scope="module")
def stack(values: npt.NDArray[np.uint16], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zarr")
    return imagej_tiff(tmp_path_factory.mktemp("stack") / "stack.tif", values)


def stack_words(stack: Path, folder: Path, running: RunningServer) -> list[str]:
    outputs = [word for name in ("labels.tif", "labels.zarr") for word in ("--out", f"{folder}/{name}")]
    return [
        "track",
        str(stack),
        "--axis",
        "z",
        *STACK_PROMPTS,
        *outputs,
        "--state-every",
        "8",
        "--url",
        running.urls["HTTP"],
    ]


@pytest.fixture(scope="module")
def tracked(stack: Path, running: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    ended = run_process(*stack_words(stack, folder, running))
    assert ended.code == 0, ended.err
    assert f"2 objects in {SLICES} frames" in ended.out
    assert "of 16 bits (percentiles 0.35 and 99.65); --contrast LOW,HIGH sets it" in ended.err
    return folder


def by_client(running: RunningServer, stack: Any) -> list[VideoFrame]:
    """The same from Python."""
    with SAM2VideoClient(running.urls["HTTP"], "sam2") as client:
        state = client.init_state(stack, axis="z")
        client.add_new_points_or_box(state, MIDDLE, 1, [[60, 50]], [1])
        client.add_new_points_or_box(state, MIDDLE, 300, box=[90, 20, 150, 90])
        forward = list(client.track_frames(state, MIDDLE))
        return [*forward, *client.track_frames(state, MIDDLE - 1, reverse=True)]


def test_labels_are_what_the_client_finds_and_objects_keep_their_numbers(
    tracked: Path, stack: Path, values: npt.NDArray[np.uint16], running: RunningServer, tmp_path: Path
) -> None:
    with tifffile.TiffFile(tracked / "labels.tif") as file:
        labels = file.asarray()
        assert (labels.shape, labels.dtype, file.series[0].axes) == (values.shape, np.uint16, "ZYX")
        assert (file.imagej_metadata["slices"], file.imagej_metadata["spacing"]) == (SLICES, SIZES["z"])
    np.testing.assert_array_equal(zarr.open(str(tracked / "labels.zarr"))["0"][:], labels)
    found = {each.index: each for each in by_client(running, stack)}
    assert sorted(found) == list(range(SLICES))
    for index, plane in enumerate(labels):
        masks = dict(zip((1, 300), found[index].masks([1, 300])[:, 0], strict=True))
        drawn = np.zeros_like(plane)
        for name, mask in sorted(masks.items(), key=lambda pair: -int(pair[1].sum())):
            drawn[mask] = name
        np.testing.assert_array_equal(plane, drawn, f"slice {index}")
    for name in (1, 300):  # before the middle, in it and behind it
        assert {bool((part == name).any()) for part in (labels[:MIDDLE], labels[MIDDLE], labels[MIDDLE + 1 :])} == {
            True
        }
    saved = save_labels(tmp_path / "saved.tif", open_clip(stack), found.values())
    np.testing.assert_array_equal(tifffile.imread(saved), labels)
    assert {path.name for path in tracked.iterdir()} == {"labels.tif", "labels.zarr"}


def test_a_zarr_and_an_array_are_tracked_alike(
    stack: Path, values: npt.NDArray[np.uint16], running: RunningServer, tmp_path: Path
) -> None:
    few = slice(MIDDLE - 2, MIDDLE + 3)
    store = ome_zarr(tmp_path / "v.zarr", values[few])

    async def by_asyncio(video: Any) -> list[tuple[int, Labels]]:
        async with AsyncSAM2VideoClient(running.urls["gRPC"], "sam2") as client:
            state = await client.init_state(video, axis="z", contrast=(200, 4000))
            await client.add_new_points_or_box(state, 2, 1, [[60, 50]], [1])
            return [(index, masks) async for index, _, masks in client.propagate_in_video(state, 2)]

    first, *others = [
        asyncio.run(by_asyncio(video))
        for video in (store, values[few], dask.array.from_array(values[few], chunks=(2, 120, 160)))
    ]
    assert [index for index, _ in first] == [2, 3, 4]
    for other in others:
        for (index, masks), (_, same) in zip(first, other, strict=True):
            np.testing.assert_array_equal(masks, same, f"slice {index}")


@pytest.mark.part("video")
def test_runs_that_are_killed_at_any_moment_go_on(
    stack: Path, tracked: Path, running: RunningServer, tmp_path: Path
) -> None:
    """With SIGKILL while slices are tracked, and while volumes are written; the files are equal, byte by byte."""
    command = [sys.executable, "-m", "triton_sam.cli", *stack_words(stack, tmp_path, running)]
    results, states = tmp_path / ".labels.tif.track", set[bytes]()

    def is_further() -> bool:
        state = results / "state.bin"
        found = state.read_bytes() if state.exists() else b""
        return bool(found) and found not in states

    for _ in range(3):
        process = subprocess.Popen(command)
        try:
            eventually(is_further, "the run has gone on", pause=0.001)
        finally:
            process.kill()
            process.wait()
        states.add((results / "state.bin").read_bytes())
        assert {path.name for path in tmp_path.iterdir()} == {results.name}
    process = subprocess.Popen(command)
    try:
        eventually((tmp_path / ".labels.zarr.unfinished").exists, "volumes are written", pause=0.0)
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "labels.tif").exists()
    ended = run_process(*stack_words(stack, tmp_path, running))
    assert ended.code == 0, ended.err
    assert {path.name for path in tmp_path.iterdir()} == {"labels.tif", "labels.zarr"}
    assert (tmp_path / "labels.tif").read_bytes() == (tracked / "labels.tif").read_bytes()
    expected = zarr.open(str(tracked / "labels.zarr"))["0"][:]
    np.testing.assert_array_equal(zarr.open(str(tmp_path / "labels.zarr"))["0"][:], expected)
