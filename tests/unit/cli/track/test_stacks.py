"""`triton-sam track` on stacks: both ways through slices, label volumes, and what has to be said more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import numpy.typing as npt
import pytest
import tifffile

from tests.stack_files import SIZES, imagej_tiff, ome_tiff, ome_zarr
from tests.unit.cli.helpers import Run, assert_one_sentence
from tests.unit.client.video_server import FakeVideoServer, reached
from tests.video_clips import write_folder, write_video
from triton_sam.client import video_client
from triton_sam.client.video_async import AsyncSAM2VideoClient
from triton_sam.client.video_client import SAM2VideoClient
from triton_sam.core.images import EncodedImage
from triton_sam.video.opening import open_clip
from triton_sam.video.results import ResultFile
from triton_sam.video.stacks.label_volumes import label_volume
from triton_sam.video.stacks.scale import VolumeForm

zarr = pytest.importorskip("zarr")

COUNT, HEIGHT, WIDTH = 9, 24, 32
#: Object -> its brightness. Contrast from 0 to 1000 keeps them apart.
OBJECTS = {1: 900, 300: 500}
CONTRAST = ("--contrast", "0,1000")
PROMPTS = ("--point", "4,8,8", "--point", "4,24,16,1,300")


def tubes() -> npt.NDArray[np.uint16]:
    """[N,H,W]: two tubes that lean; the second one ends before the last slice."""
    values = np.full((COUNT, HEIGHT, WIDTH), 100, np.uint16)
    for index in range(COUNT):
        values[index, 4:12, index : index + 8] = OBJECTS[1]
        if index < COUNT - 2:
            values[index, 14:20, 30 - index - 4 : 30 - index] = OBJECTS[300]
    return values


def labels_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return np.select([values == OBJECTS[1], values == OBJECTS[300]], [1, 300], 0).astype(np.uint16)


def by_brightness(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
    """What a perfect model finds."""
    shown = EncodedImage(image, max_bytes=2**20, max_pixels=2**20).pixels()
    return abs(np.asarray(shown)[..., 0].astype(int) - OBJECTS[name] * 255 / 1000) < 10


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeVideoServer:
    found = FakeVideoServer(draw=by_brightness)
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(found))
    return found


def test_slices_are_tracked_both_ways_and_labels_have_the_stacks_form(server: FakeVideoServer, run: Run) -> None:
    imagej_tiff(Path("v.tif"), tubes())
    ended = run("v.tif", "--axis", "z", *CONTRAST, *PROMPTS, "--out", "l.tif", "--out", "l.zarr", "--out", "o.mp4")
    assert ended.code == 0, ended.err
    assert ended.err == "contrast: 0 to 1000 as given; --contrast LOW,HIGH sets it\n"
    assert ended.out == f"2 objects in {COUNT} frames: o.mp4, l.tif, l.zarr\n"
    assert [track["frame"] for track in server.done("track")] == [4, 5, 6, 7, 8, 3, 2, 1, 0]
    with tifffile.TiffFile("l.tif") as file:
        assert (file.series[0].axes, file.series[0].dtype) == ("ZYX", np.uint16)
        assert file.imagej_metadata["spacing"] == SIZES["z"]
        np.testing.assert_array_equal(file.asarray(), labels_of(tubes()))
    np.testing.assert_array_equal(zarr.open("l.zarr")["0"][:], labels_of(tubes()))
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.tif", "l.tif", "l.zarr", "o.mp4"}


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        (["--axis", "t"], [4, 5, 6, 7, 8]),
        ([], [4, 5, 6, 7, 8]),
        (["--axis", "z", "--forward"], [4, 5, 6, 7, 8]),
        (["--axis", "z", "--reverse"], [4, 3, 2, 1, 0]),
        (["--axis", "t", "--both"], [4, 5, 6, 7, 8, 3, 2, 1, 0]),
        (["--axes", "ZYX"], [4, 5, 6, 7, 8, 3, 2, 1, 0]),
    ],
)
def test_which_way(options: list[str], frames: list[int], server: FakeVideoServer, run: Run) -> None:
    tifffile.imwrite("v.tif", tubes(), photometric="minisblack", metadata=None)
    ended = run("v.tif", *options, *CONTRAST, *PROMPTS, "--out", "l.tif")
    assert ended.code == 0, ended.err
    assert [track["frame"] for track in server.done("track")] == frames
    assert ("frames run along t, because v.tif does not name its dimensions" in ended.err) == (not options)
    expected = labels_of(tubes())
    expected[[index for index in range(COUNT) if index not in frames]] = 0
    np.testing.assert_array_equal(tifffile.imread("l.tif"), expected)


@pytest.mark.parametrize("kind", ["OME-TIFF", "OME-Zarr 2", "OME-Zarr 3", "Zarr"])
def test_one_channel_and_time_of_many(kind: str, server: FakeVideoServer, run: Run) -> None:
    values = np.zeros((2, 3, COUNT, HEIGHT, WIDTH), np.uint16)
    values[1, 2] = tubes()
    path = "v.zarr"
    if kind == "OME-TIFF":
        path = str(ome_tiff(Path("v.ome.tif"), values, "TCZYX"))
    elif kind == "Zarr":
        zarr.create_array("v.zarr", data=values)
    else:
        ome_zarr(Path("v.zarr"), values, "tczyx", int(kind[-1]), levels=1)
    axes = ("--axes", "TCZYX") if kind == "Zarr" else ()
    ended = run(path, "--axis", "z", "--at", "c=2,T=1", *axes, *CONTRAST, *PROMPTS, "--out", "l.zarr", "--out", "l.tif")
    assert ended.code == 0, ended.err
    np.testing.assert_array_equal(tifffile.imread("l.tif"), labels_of(tubes()))
    store = zarr.open_group("l.zarr", mode="r")
    np.testing.assert_array_equal(store["0"][:], labels_of(tubes()))
    assert store.metadata.zarr_format == (3 if kind in ("OME-Zarr 3", "Zarr") else 2)
    sizes = open_clip("l.zarr").form.scale.sizes
    assert {name: sizes[name] for name in "zyx"} == (dict.fromkeys("zyx", 1.0) if kind == "Zarr" else SIZES)


def test_the_contrast_of_a_sample_is_told(server: FakeVideoServer, run: Run) -> None:
    imagej_tiff(Path("v.tif"), tubes())
    ended = run("v.tif", "--point", "4,8,8", "--out", "l.tif")
    assert ended.code == 0
    assert ended.err == ("contrast: 100 to 900 of 16 bits (percentiles 0.35 and 99.65); --contrast LOW,HIGH sets it\n")


def test_a_killed_run_goes_on(run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill_at_last(add: Any) -> Any:
        def adding(results: ResultFile, frame: Any) -> None:
            add(results, frame)
            if frame.index == 2:
                raise Killed

        return adding

    ome_zarr(Path("v.zarr"), tubes())
    words = ("v.zarr", *PROMPTS, "--state-every", "2", "--out", "l.tif", "--out", "l.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", kill_at_last(ResultFile.add))
        with pytest.raises(Killed):
            run(*words, *CONTRAST)
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.zarr", ".l.tif.track"}
    before = len(server.done("track"))
    ended = run(*words, *CONTRAST)
    assert ended.code == 0, ended.err
    assert len(server.done("track")) - before < COUNT
    np.testing.assert_array_equal(tifffile.imread("l.tif"), labels_of(tubes()))
    np.testing.assert_array_equal(zarr.open("l.zarr")["0"][:], labels_of(tubes()))
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.zarr", "l.tif", "l.zarr"}


def test_other_slices_do_not_go_on(run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frame of both channels is the same."""
    values = np.stack([tubes(), tubes()[:1].repeat(COUNT, axis=0)])
    zarr.create_array("v.zarr", data=values, dimension_names=list("czyx"))

    class Killed(BaseException):
        pass

    def add(results: ResultFile, frame: Any, known: Any = ResultFile.add) -> None:
        known(results, frame)
        raise Killed

    words = ("v.zarr", *CONTRAST, *PROMPTS, "--out", "l.tif")
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", add)
        with pytest.raises(Killed):
            run(*words, "--at", "c=0")
    ended = run(*words, "--at", "c=1")
    assert ended.code == 1
    assert "has a stopped run with another stack: give the former options to go on" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["v.tif", "--at", "c"], "'c' is not an --at DIMENSION=INDEX, such as --at c=1,t=0"),
        (["v.tif", "--at", "c=1", "--at", "C=0"], "the dimension C is held twice"),
        (["v.tif", "--at", "c=1"], "v.tif has c from 0 to 0, and --at c=1 is beyond"),
        (["v.tif", "--at", "w=1"], "v.tif has no dimension w (t 1, z 9, c 1, y 24, x 32): leave --at w=1 out"),
        (["v.tif", "--axis", "w"], "axis is t (frames of a video) or z (slices of a volume), not 'w'"),
        (["v.tif", "--axis", "t"], "v.tif has no slices along t (t 1, z 9, c 1, y 24, x 32): give --axis z"),
        (["v.tif", "--axes", "TZYX"], "the axes TZYX name 4 dimensions and v.tif has 5"),
        (["v.tif", "--contrast", "7"], "'7' is not a --contrast LOW,HIGH"),
        (["v.tif", "--contrast", "7,3"], "contrast is (low, high) with low below high, not (7, 3)"),
        (["v.tif", "--forward", "--both"], "--forward and --both contradict each other"),
        (["v.tif", "--out", "v.tif"], "--out v.tif would replace v.tif, which is read"),
        (["v.zarr", "--out", "v.zarr"], "--out v.zarr would replace v.zarr, which is read"),
        (["v.zarr/0", "--out", "v.zarr/"], "--out v.zarr would replace v.zarr/0, which is read"),
        (["v.tif", "--out", "v.zarr"], "v.zarr is there already, and is no label volume of triton-sam"),
        (["l.zarr/0", "--axis", "z", "--out", "l.zarr"], "--out l.zarr would replace l.zarr/0, which is read"),
        (["v.tif", "--out", "l.npy"], "l.npy is neither .mp4, .mov, .mkv, .tif, .zarr nor .json"),
        (["v.tif", "--point", "4,1,1,1,70000", "--out", "l.tif"], "object 70000 has no place in label images"),
        (["v.mp4", "--contrast", "0,9"], "v.mp4 is no stack: at, contrast and axes are for TIFF and Zarr stacks"),
        (["f", "--at", "w=1"], "f has no dimension w (t 1, y 48, x 64, s 3): leave --at w=1 out"),
        (["v.tif", "--point", "9,1,1"], "there is no frame 9 in v.tif: it has 9 frames, counted from 0"),
    ],
)
def test_one_clear_sentence(words: list[str], told: str, server: FakeVideoServer, run: Run) -> None:
    imagej_tiff(Path("v.tif"), tubes())
    ome_zarr(Path("v.zarr"), tubes())
    write_folder(Path("f"), ["0.png"])
    if "v.mp4" in words:
        write_video(Path("v.mp4"), 2)
    with label_volume(Path("l.zarr"), VolumeForm("z"), 2, (8, 8), [1]) as put:
        put(None)
        put(None)
    assert_one_sentence(run(*words, "--point", "0,1,1", *([] if "--out" in words else ["--out", "o.tif"])), told)
    assert not server.calls


def test_labels_of_a_video_and_of_a_folder(server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "draw", lambda image, name, memory, size: np.ones(size[::-1], bool))
    write_folder(Path("f"), ["0.png", "1.png", "2.png"])
    assert run("f", "--axis", "z", "--point", "1,4,4", "--out", "l.tif").code == 0
    assert [track["frame"] for track in server.done("track")] == [1, 2, 0]
    with tifffile.TiffFile("l.tif") as file:
        assert (file.series[0].axes, file.series[0].shape) == ("ZYX", (3, 48, 64))
    write_video(Path("v.mp4"), 4)
    assert run("v.mp4", "--point", "1,4,4", "--out", "v.zarr").code == 0
    assert zarr.open("v.zarr")["0"][:, 0, 0].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("kind", ["file", "zarr", "numpy", "dask"])
def test_both_clients_take_stacks(kind: str, server: FakeVideoServer, tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "file": imagej_tiff(tmp_path / "v.tif", tubes()),
        "zarr": zarr.create_array(str(tmp_path / "v.zarr"), data=tubes()),
        "numpy": tubes(),
        "dask": dask.array.from_array(tubes(), chunks=(4, 12, 32)),
    }
    with SAM2VideoClient(servers=reached(server)) as client:
        state = client.init_state(made[kind], axis="z", contrast=(0, 1000))
        client.add_new_points_or_box(state, 4, 1, [[8, 8]], [1])
        client.add_new_points_or_box(state, 4, 300, [[24, 16]], [1])
        found = {way: list(client.propagate_in_video(state, 4, reverse=way)) for way in (False, True)}
    masks = {index: masks for way in found.values() for index, _, masks in way}
    for index, mask in masks.items():
        for place, name in enumerate(OBJECTS):
            np.testing.assert_array_equal(mask[place, 0], labels_of(tubes())[index] == name)
    assert sorted(masks) == list(range(COUNT))

    async def again() -> list[Any]:
        async with AsyncSAM2VideoClient(servers=reached(FakeVideoServer(draw=by_brightness))) as client:
            state = await client.init_state(made[kind], axis="z", contrast=(0, 1000))
            await client.add_new_points_or_box(state, 4, 1, [[8, 8]], [1])
            return [each async for each in client.propagate_in_video(state, 4)]

    assert [index for index, _, _ in asyncio.run(again())] == [4, 5, 6, 7, 8]
