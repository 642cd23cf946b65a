"""Label volumes, read back by tifffile and zarr: numbers, overlaps, sizes of voxels; whole, or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

from tests.stack_files import SIZES, imagej_tiff, ome_tiff, ome_zarr, volume
from triton_sam import save_labels
from triton_sam.core import zarr_arrays
from triton_sam.core.rle import rle
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.opening import open_clip
from triton_sam.video.stacks import label_tiff
from triton_sam.video.stacks.label_volumes import check_label_volume, label_volume
from triton_sam.video.stacks.scale import Scale, VolumeForm

zarr = pytest.importorskip("zarr")

SIZE = (23, 17)
MICROMETRES = Scale(SIZES, dict.fromkeys("zyx", "micrometer"))
Labels = npt.NDArray[Any]


def frames_of(seed: int, objects: list[int], count: int) -> list[VideoFrame | None]:
    """Masks that overlap; the third frame has no result."""
    rng = np.random.default_rng(seed)
    found: list[VideoFrame | None] = []
    for index in range(count):
        masks = {name: rng.random(SIZE[::-1]) > rng.uniform(0.3, 1) for name in objects}
        objects_found = {name: FoundObject(rle(mask), 0.9, 1.0) for name, mask in masks.items()}
        found.append(None if index == 2 else VideoFrame(index, None, objects_found, SIZE))
    return found


def expected_labels(frames: list[VideoFrame | None]) -> Labels:
    """Painted from the largest mask to the smallest."""
    labels = np.zeros((len(frames), *SIZE[::-1]), np.uint16)
    for plane, frame in zip(labels, frames, strict=True):
        names = [] if frame is None else list(frame.objects)
        masks = [] if frame is None else list(frame.masks(names)[:, 0])
        for name, mask in sorted(zip(names, masks, strict=True), key=lambda pair: -int(pair[1].sum())):
            plane[mask] = name
    return labels


def write(path: Path, frames: list[VideoFrame | None], objects: list[int], form: VolumeForm | None = None) -> Labels:
    with label_volume(path, form or VolumeForm("z"), len(frames), SIZE, objects) as put:
        for frame in frames:
            put(frame)
    found: Labels = tifffile.imread(path) if path.suffix != ".zarr" else zarr.open(str(path))["0"][:]
    return found


@pytest.mark.parametrize("name", ["v.tif", "v.ome.tif", "v.tiff", "v.zarr"])
@pytest.mark.parametrize(("objects", "dtype"), [([1, 7, 255], np.uint8), ([3, 256], np.uint16)])
def test_numbers_and_overlaps(name: str, objects: list[int], dtype: Any, tmp_path: Path) -> None:
    frames = frames_of(1, objects, 5)
    found = write(tmp_path / name, frames, objects)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected_labels(frames))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("labels")


@given(
    st.sampled_from(["v.tif", "v.zarr"]),
    st.sampled_from("tz"),
    st.booleans(),
    st.sampled_from([None, 2, 3]),
    st.lists(st.integers(1, 65_535), max_size=3, unique=True),
    st.integers(1, 6),
)
def test_any_volume_comes_back(
    new_folder: Callable[[], Path],
    name: str,
    axis: str,
    is_ome: bool,
    zarr_format: int | None,
    objects: list[int],
    count: int,
) -> None:
    folder, form = new_folder(), VolumeForm(axis, MICROMETRES, is_ome, zarr_format)
    frames = frames_of(count, objects, count)
    found = write(folder / name, frames, objects, form)
    np.testing.assert_array_equal(found.reshape(count, *SIZE[::-1]), expected_labels(frames))
    clip = open_clip(folder / name)  # labels are a stack of their own
    assert (clip.length, clip.size) == (count, SIZE)
    if count > 1:
        assert clip.axis == axis
    scale = clip.form.scale.sizes
    assert {key: scale[key] for key in "yx"} == pytest.approx({key: SIZES[key] for key in "yx"})
    assert axis == "t" or scale["z"] == SIZES["z"]
    assert VolumeForm.from_json(asdict(form)) == form


def test_what_imagej_and_tifffile_read(tmp_path: Path) -> None:
    frames = frames_of(1, [1, 9], 4)
    write(tmp_path / "v.tif", frames, [1, 9], VolumeForm("z", MICROMETRES))
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        assert (file.is_imagej, file.is_bigtiff, file.series[0].axes) == (True, False, "ZYX")
        about = file.imagej_metadata
        assert (about["slices"], about["spacing"], about["unit"], about["max"]) == (4, 0.5, "\\u00B5m", 9)
        assert [page.compression.name for page in file.pages] == ["ADOBE_DEFLATE"] * 4
        for tag, size in (("XResolution", SIZES["x"]), ("YResolution", SIZES["y"])):
            above, below = file.pages[0].tags[tag].value
            assert below / above == size
    times = VolumeForm("t", Scale({"t": 2.5, "y": 1, "x": 1}, {"t": "second", "y": "inch", "x": "inch"}))
    write(tmp_path / "t.tif", frames, [1, 9], times)
    with tifffile.TiffFile(tmp_path / "t.tif") as file:
        assert file.series[0].axes == "TYX"
        assert (file.imagej_metadata["frames"], file.imagej_metadata["finterval"]) == (4, 2.5)
        assert file.pages[0].tags["ResolutionUnit"].value == 2
    assert open_clip(tmp_path / "t.tif").form.scale == times.scale


@pytest.mark.parametrize("size", [1e-10, 1e12])
@pytest.mark.parametrize("is_ome", [False, True])
def test_sizes_that_are_no_tiff_fraction(size: float, is_ome: bool, tmp_path: Path) -> None:
    form = VolumeForm("z", Scale(dict.fromkeys("zyx", size), dict.fromkeys("zyx", "meter")), is_ome)
    write(tmp_path / "v.tif", frames_of(1, [1], 3), [1], form)
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        assert "XResolution" not in file.pages.first.tags or file.pages.first.tags["XResolution"].value == (1, 1)
        told = file.ome_metadata if is_ome else file.pages.first.description
    assert (f'PhysicalSizeX="{size!r}"' if is_ome else f"spacing={size!r}") in told


def test_a_spacing_in_another_unit(tmp_path: Path) -> None:
    scale = Scale({"z": 0.5, "y": 20.0, "x": 20.0}, {"z": "micrometer", "y": "nanometer", "x": "nanometer"})
    write(tmp_path / "v.tif", frames_of(1, [1], 3), [1], VolumeForm("z", scale=scale))
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        assert file.imagej_metadata["unit"] == "nm"
        assert file.imagej_metadata["spacing"] == pytest.approx(500)


def test_more_than_four_gigabytes_are_a_bigtiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_tiff, "_MOST_BYTES", 4 * SIZE[0] * SIZE[1])
    frames = frames_of(1, [1], 5)
    found = write(tmp_path / "v.tif", frames, [1], VolumeForm("z", MICROMETRES))
    np.testing.assert_array_equal(found, expected_labels(frames))
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        assert (file.is_bigtiff, file.is_ome, file.series[0].axes) == (True, True, "ZYX")
        assert 'PhysicalSizeZ="0.5" PhysicalSizeZUnit="&#181;m"' in file.ome_metadata


@pytest.mark.parametrize("form", [2, 3])
def test_an_ome_zarr(form: int, tmp_path: Path) -> None:
    scale = Scale(MICROMETRES.sizes, MICROMETRES.units, {"y": 3.0})
    write(tmp_path / "v.zarr", frames_of(1, [1], 4), [1], VolumeForm("z", scale, zarr_format=form))
    group = zarr.open_group(str(tmp_path / "v.zarr"), mode="r")
    assert group.metadata.zarr_format == form
    attributes = dict(group.attrs) if form == 2 else group.attrs["ome"]
    (image,) = attributes["multiscales"]
    assert (image.get("version") or attributes["version"]) == {2: "0.4", 3: "0.5"}[form]
    assert image["axes"] == [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    (level,) = image["datasets"]
    assert level["coordinateTransformations"] == [
        {"type": "scale", "scale": [0.5, 0.25, 0.125]},
        {"type": "translation", "translation": [0.0, 3.0, 0.0]},
    ]
    assert (level["path"], group["0"].chunks) == ("0", (1, *SIZE[::-1]))
    assert open_clip(tmp_path / "v.zarr").form.scale == scale


@pytest.mark.parametrize(
    "make", [imagej_tiff, ome_tiff, lambda path, values: ome_zarr(path.with_suffix(".zarr"), values)]
)
@pytest.mark.parametrize("name", ["l.tif", "l.zarr"])
def test_labels_of_a_stack_have_its_voxels(make: Callable[..., Path], name: str, tmp_path: Path) -> None:
    clip = open_clip(make(tmp_path / "v.tif", volume((4, 17, 23))))
    write(tmp_path / name, frames_of(1, [1], 4), [1], clip.form)
    assert open_clip(tmp_path / name).form.scale.of("zyx") == clip.form.scale.of("zyx")


@pytest.mark.parametrize("name", ["v.tif", "v.zarr"])
def test_whole_or_not_there(name: str, tmp_path: Path) -> None:
    frames = frames_of(1, [1], 4)

    def begin(error: BaseException | None) -> None:
        with label_volume(tmp_path / name, VolumeForm(), 4, SIZE, [1]) as put:
            put(frames[0])
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        begin(KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="was promised 4 frames and got 1"):
        begin(None)
    assert list(tmp_path.iterdir()) == []
    if name == "v.zarr":
        (tmp_path / f".{name}.unfinished").mkdir()  # of a process that was killed
    first = write(tmp_path / name, frames, [1])
    np.testing.assert_array_equal(write(tmp_path / name, frames[::-1], [1]), first[::-1])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_else_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ome_zarr(tmp_path / "raw.zarr", volume())
    (tmp_path / "file.zarr").write_text("")
    (tmp_path / "folder.tif").mkdir()
    for name in ("raw.zarr", "file.zarr"):
        with pytest.raises(InvalidInput, match="is there already, and is no label volume of triton-sam"):
            check_label_volume(tmp_path / name, [1])
    with pytest.raises(InvalidInput, match="is a folder"):
        check_label_volume(tmp_path / "folder.tif", [1])
    with pytest.raises(InvalidInput, match=r"a label volume is \.tif, \.tiff or \.zarr, not v\.npy"):
        check_label_volume(tmp_path / "v.npy", [1])
    with pytest.raises(InvalidInput, match="object 70000 has no place in label images"):
        check_label_volume(tmp_path / "v.tif", [70_000])

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(zarr_arrays.importlib, "import_module", missing)
    with pytest.raises(SetupError, match=r"Zarr arrays need the package zarr: run `.*batch"):
        check_label_volume(tmp_path / "v.zarr", [1])


def test_what_a_client_returns_is_saved(tmp_path: Path) -> None:
    stack = imagej_tiff(tmp_path / "v.tif", volume((4, 17, 23)))
    clip = open_clip(stack)
    frames = frames_of(1, [1, 300], 4)
    found = [frame for frame in frames if frame is not None]
    assert save_labels(tmp_path / "l.tif", clip, reversed(found)) == tmp_path / "l.tif"
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "l.tif"), expected_labels(frames))
    tuples = [(frame.index, [1, 300], frame.masks([1, 300])) for frame in found]
    save_labels(os.fspath(tmp_path / "l.zarr"), clip, tuples)
    np.testing.assert_array_equal(zarr.open(str(tmp_path / "l.zarr"))["0"][:], expected_labels(frames))
    with pytest.raises(InvalidInput, match="frames are what track_frames or propagate_in_video yield"):
        save_labels(tmp_path / "l.tif", clip, [np.zeros((4, 5))])
