"""Stacks of every kind as clips: their values, their dimensions and their voxels' sizes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.stack_files import SIZES, imagej_tiff, ome_tiff, ome_zarr, volume
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.video.clip import Clip, ClipLimits
from triton_sam.video.opening import open_clip
from triton_sam.video.stacks.sources import ArraySource
from triton_sam.video.stacks.stack_clip import StackClip

zarr = pytest.importorskip("zarr")

#: Values stay what they are: 8 bits, and the others fit into 8 bits with this contrast.
PLAIN = (0, 255)
Values = npt.NDArray[Any]


def pixels(clip: Clip, index: int | None = None) -> Values:
    """[N,H,W] or [N,H,W,3] as it is sent, or one frame."""
    frames = list(clip.frames()) if index is None else [clip.frame(index)]
    found = np.stack([np.asarray(Image.open(io.BytesIO(frame.data))) for frame in frames])
    return found if index is None else found[0]


def written_zarr(path: Path, values: Values, form: int = 3, **how: Any) -> Path:
    zarr.create_array(str(path), data=values, zarr_format=form, **how)
    return path


def plain_tiff(path: Path, values: Values, photometric: str = "minisblack", **how: Any) -> Path:
    tifffile.imwrite(path, values, photometric=photometric, **how)
    return path


#: Each takes a folder and [T,C,Z,Y,X] and writes a file of them.
FILES: dict[str, Callable[[Path, Values], Path]] = {
    "ImageJ": lambda folder, values: imagej_tiff(folder / "v.tif", values.swapaxes(1, 2), "TZCYX"),
    "OME-TIFF": lambda folder, values: ome_tiff(folder / "v.ome.tif", values, "TCZYX"),
    "OME-TIFF, other order": lambda folder, values: ome_tiff(
        folder / "v.ome.tif", np.ascontiguousarray(values.transpose(2, 0, 1, 3, 4)), "ZTCYX", compression="zlib"
    ),
    "OME-BigTIFF of tiles": lambda folder, values: ome_tiff(
        folder / "v.ome.tif", values, "TCZYX", bigtiff=True, tile=(16, 16)
    ),
    "TIFF of tifffile": lambda folder, values: plain_tiff(folder / "v.tif", values, metadata={"axes": "TCZYX"}),
    "OME-Zarr 0.4": lambda folder, values: ome_zarr(folder / "v.zarr", values, "tczyx"),
    "OME-Zarr 0.5": lambda folder, values: ome_zarr(folder / "v.zarr", values, "tczyx", 3),
    "a level of an OME-Zarr": lambda folder, values: ome_zarr(folder / "v.zarr", values, "tczyx") / "0",
    "Zarr 3 with names": lambda folder, values: written_zarr(
        folder / "v", values, dimension_names=["time", "channel", "depth", "y", "x"], chunks=(1, 1, 4, 8, 8)
    ),
    "Zarr 3 with shards": lambda folder, values: written_zarr(
        folder / "v", values, dimension_names=list("tczyx"), chunks=(1, 1, 2, 8, 8), shards=(1, 2, 6, 16, 16)
    ),
    "Zarr 2 of xarray": lambda folder, values: written_zarr(
        folder / "v", values, 2, attributes={"_ARRAY_DIMENSIONS": ["time", "channel", "z", "y", "x"]}
    ),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_frames_of_a_hyperstack(kind: str, dtype: Any, tmp_path: Path) -> None:
    values = volume((3, 2, 7, 22, 18)).astype(np.uint8).astype(dtype)
    path = FILES[kind](tmp_path, values)
    contrast = None if dtype == np.uint8 else PLAIN
    slices = open_clip(path, axis="z", at={"t": 1, "c": 1}, contrast=contrast)
    assert (slices.axis, slices.length, slices.size) == ("z", 7, (18, 22))
    np.testing.assert_array_equal(pixels(slices), values[1, 1])
    np.testing.assert_array_equal(pixels(slices, 4), values[1, 1, 4])
    times = open_clip(path, axis="t", at={"z": 5, "c": 0}, contrast=contrast)
    assert (times.axis, times.length) == ("t", 3)
    np.testing.assert_array_equal(pixels(times), values[:, 0, 5])
    with pytest.raises(InvalidInput, match="has both 7 slices"):
        open_clip(path)
    with pytest.raises(InvalidInput, match="there is no frame 7"):
        slices.frame(7)


@pytest.mark.parametrize("kind", [kind for kind in FILES if "ImageJ" in kind or "OME" in kind])
def test_sizes_of_voxels(kind: str, tmp_path: Path) -> None:
    path = FILES[kind](tmp_path, volume((3, 2, 7, 22, 18)))
    clip = open_clip(path, axis="z", at={"t": 0, "c": 0})
    scale = clip.form.scale
    assert {name: scale.sizes[name] for name in "zyx"} == pytest.approx(SIZES)
    assert {name: scale.units[name] for name in "zyx"} == dict.fromkeys("zyx", "micrometer")
    assert (scale.sizes["t"], scale.units["t"]) == (3, "second")
    assert clip.form.is_ome == ("OME" in kind)


def test_the_second_level_has_its_own_voxels(tmp_path: Path) -> None:
    store = ome_zarr(tmp_path / "v.zarr", volume())
    first, second = open_clip(store), open_clip(store / "1")
    assert first.notes == [f"level 0 of 2 is tracked, the finest: give {store / '1'} for a coarser one"]
    assert (second.axis, second.size, second.notes) == ("z", (20, 15), [])
    assert second.form.scale.sizes == SIZES | {"y": 0.5, "x": 0.25}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", ["TIFF", "OME-TIFF", "ImageJ", "Zarr", "array"])
def test_colours(kind: str, bits: int, tmp_path: Path) -> None:
    values = volume((5, 12, 18, 3)).astype(np.uint8).astype(np.uint8 if bits == 8 else np.uint16)
    if kind == "ImageJ" and bits == 16:
        pytest.skip("ImageJ has colours of 8 bits only")
    made: dict[str, Callable[[], Any]] = {
        "TIFF": lambda: plain_tiff(tmp_path / "v.tif", values, photometric="rgb"),
        "OME-TIFF": lambda: ome_tiff(tmp_path / "v.ome.tif", values, "ZYXS", photometric="rgb"),
        "ImageJ": lambda: imagej_tiff(tmp_path / "v.tif", values, "ZYXS"),
        "Zarr": lambda: written_zarr(tmp_path / "v.zarr", values),
        "array": lambda: values,
    }
    source = made[kind]()
    clip = open_clip(source, axis="z", contrast=PLAIN if bits == 16 else None)
    assert (clip.length, clip.size) == (5, (18, 12))
    np.testing.assert_array_equal(pixels(clip), values)
    one = open_clip(source, axis="z", at={"c": 1}, contrast=PLAIN)
    np.testing.assert_array_equal(pixels(one), values[..., 1])


def test_arrays_of_other_libraries(tmp_path: Path) -> None:
    values = volume((9, 22, 18)).astype(np.uint8)
    for array in (
        dask.array.from_array(values, chunks=((4, 5), (10, 12), (18,))),
        zarr.create_array(str(tmp_path / "v"), data=values, chunks=(4, 8, 8)),
        values,
        values[::-1][::-1],
        np.memmap(tmp_path / "m", np.uint8, "w+", shape=values.shape),
    ):
        if isinstance(array, np.memmap):
            array[:] = values
        clip = open_clip(array, axis="z")
        assert (clip.axis, clip.length) == ("z", 9)
        np.testing.assert_array_equal(pixels(clip), values)
    assert open_clip(values).axis == "t"
    assert isinstance(open_clip(dask.array.from_array(values)), StackClip)


def test_signs_floats_and_odd_numbers(tmp_path: Path) -> None:
    values = volume((4, 12, 18)).astype(np.float32)
    values[0, 0, :3] = np.nan, np.inf, -np.inf
    found = pixels(open_clip(plain_tiff(tmp_path / "v.tif", values), axis="z", contrast=(100, 3900)))
    assert found[0, 0, :3].tolist() == [0, 255, 0]
    expected = (np.clip((values - 100) / 3800, 0, 1) * 255)[1:]
    np.testing.assert_allclose(found[1:], expected, atol=0.51)
    signed = (values[1:] - 2000).astype(np.int16)
    np.testing.assert_allclose(pixels(open_clip(signed, axis="z", contrast=(-1900, 1900))), expected, atol=0.6)
    np.testing.assert_array_equal(pixels(open_clip(signed > 0, axis="z")) > 0, signed > 0)
    big = plain_tiff(tmp_path / "big.tif", values[1:].astype(">u2"), byteorder=">")
    np.testing.assert_allclose(pixels(open_clip(big, axis="z", contrast=(100, 3900))), expected, atol=0.6)


def test_frames_of_a_chunk_are_read_once() -> None:
    class Counting:
        """Counts reads; chunks of 8 frames."""

        def __init__(self, values: Values) -> None:
            self.values, self.shape, self.dtype, self.chunks = values, values.shape, values.dtype, (8, 22, 18)
            self.reads: list[slice] = []

        def __getitem__(self, index: Any) -> Values:
            self.reads.append(index[0])
            return self.values[index]

    array = Counting(volume((20, 22, 18)).astype(np.uint8))
    clip = open_clip(array, axis="z")
    np.testing.assert_array_equal(pixels(clip), array.values)
    for index in reversed(range(20)):
        clip.frame(index)
    assert array.reads == [slice(0, 8), slice(8, 16), slice(16, 20), slice(0, 8)]


def test_a_stack_larger_than_the_memory_is_read_in_parts(tmp_path: Path) -> None:
    """Chunks that are not there are zero, so it has no bytes on the disk."""
    array = zarr.create_array(
        str(tmp_path / "v.zarr"), shape=(4000, 8192, 4096), dtype=np.uint16, chunks=(64, 256, 256)
    )
    array[2000, 4000:4100, 2000:2100] = 900
    clip = open_clip(tmp_path / "v.zarr", axis="z", contrast=(0, 1000))
    assert clip.length == 4000
    assert isinstance(clip, StackClip)
    assert clip._source._block_of(clip._selection, 2001) == (2001, 2002)  # type: ignore[attr-defined]
    small = open_clip(tmp_path / "v.zarr", axis="z")
    assert small.contrast is not None  # from 8 of 32,256 chunks
    assert "every pixel that was looked at is 0" in small.contrast.note


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("stack")


@given(data=st.data())
def test_a_stack_comes_back_from_its_file(data: st.DataObject, new_folder: Callable[[], Path]) -> None:
    sizes = {name: data.draw(st.integers(1, 5), label=name) for name in "tcz"}
    kind = data.draw(st.sampled_from([*FILES]))
    values = volume((sizes["t"], sizes["c"], sizes["z"], 17, 19)).astype(np.uint8)
    path = FILES[kind](new_folder(), values)
    axis = data.draw(st.sampled_from([name for name in "tz" if sizes[name] > 1] or ["z"]))
    if sizes["t"] == sizes["z"] == 1:
        return
    at = {name: data.draw(st.integers(0, sizes[name] - 1)) for name in "tcz" if name != axis and sizes[name] > 1}
    clip = open_clip(path, axis=axis, at=at)
    index = tuple(slice(None) if name == axis else at.get(name, 0) for name in "tcz")
    np.testing.assert_array_equal(pixels(clip), values[index])


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "complex numbers": (lambda folder: volume().astype(np.complex64), "has complex numbers and no brightness"),
    "Python objects": (lambda folder: volume().astype(object), "has Python objects and no brightness"),
    "texts": (lambda folder: volume().astype(str), "has texts and no brightness"),
    "dates": (lambda folder: volume().astype("M8[s]"), "has values of the type datetime64[s] and no brightness"),
    "records": (lambda folder: np.zeros((3, 4, 5), [("a", "u1")]), "has records and no brightness"),
    "a TIFF of complex numbers": (
        lambda folder: plain_tiff(folder / "v.tif", volume().astype(np.complex64)),
        "the TIFF has complex numbers",
    ),
    "a Zarr of complex numbers": (
        lambda folder: written_zarr(folder / "v.zarr", volume().astype(np.complex64)),
        "has complex numbers and no brightness",
    ),
    "a group without arrays": (
        lambda folder: folder / str(zarr.open_group(str(folder / "v.zarr"), mode="w").store.root),
        "is a Zarr group without arrays: give the folder of an array",
    ),
    "a folder named zarr": (lambda folder: _folder(folder / "v.zarr"), "is no Zarr array: it has neither zarr.json"),
    "a file named zarr": (lambda folder: plain_tiff(folder / "v.zarr", volume()), ""),
    "a zipped store": (lambda folder: _zipped(folder / "v.zarr.zip"), "is a zipped Zarr store: unpack it"),
    "an empty array": (lambda folder: np.zeros((0, 4, 5), np.uint8), "there are no frames in the array: it is empty"),
    "nothing to see": (lambda folder: np.zeros((3, 0, 5), np.uint8), "there are no frames in the array: it is empty"),
}


def _zipped(path: Path) -> Path:
    zarr.create_array(zarr.storage.ZipStore(path, mode="w"), data=volume()).store.close()
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_a_stack(name: str, tmp_path: Path) -> None:
    make, told = WRONG[name]
    if not told:
        assert open_clip(make(tmp_path), axis="z").length == 6
        return
    with pytest.raises(InvalidInput) as caught:
        open_clip(make(tmp_path), axis="z")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_arrays_of_a_group(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "v.zarr"), mode="w")
    group.create_array("raw", data=volume())
    only = open_clip(tmp_path / "v.zarr", axis="z")
    assert only.notes == [f"the only array of {tmp_path / 'v.zarr'} is tracked: raw"]
    group.create_array("other", data=volume())
    with pytest.raises(InvalidInput, match=r"is a Zarr group and no array: give one of its arrays \(other, raw\)"):
        open_clip(tmp_path / "v.zarr")
    image = ome_zarr(tmp_path / "b.zarr" / "0", volume())
    zarr.open_group(str(tmp_path / "b.zarr"), mode="a").attrs["bioformats2raw.layout"] = 3
    assert open_clip(tmp_path / "b.zarr").notes[0] == f"the first image of the store is tracked: {image}"


def test_a_codec_that_is_not_there(tmp_path: Path) -> None:
    for form, name in ((2, ".zarray"), (3, "zarr.json")):
        path = written_zarr(tmp_path / f"{form}.zarr", volume(), form)
        text = (path / name).read_text()
        (path / name).write_text(text.replace('"zstd"', '"xyz"'))
        with pytest.raises(InvalidInput, match=r"cannot be opened \(.*xyz.*\): install its codec, or write it anew"):
            open_clip(path, axis="z")


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = written_zarr(tmp_path / "v.zarr", volume().astype(np.uint8), chunks=(1, 30, 40))
    (path / "c" / "3" / "0" / "0").write_bytes(b"no zstd")
    clip = open_clip(path, axis="z")
    assert len(list(clip.frames(0, 2))) == 3
    with pytest.raises(InvalidInput, match=r"frame 3 of .*v\.zarr cannot be read: "):
        clip.frame(3)


def test_pages_that_differ_or_are_missing(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "v.tif") as file:
        for page in (volume((30, 40)), volume((30, 40)), volume((30, 40)).astype(np.uint8)):
            file.write(page, metadata=None)
    with pytest.raises(
        InvalidInput, match=r"frame 2 of .* has 1 channel\(s\) of uint8 and the first frame 1 of uint16"
    ):
        list(open_clip(tmp_path / "v.tif", axis="z", contrast=PLAIN).frames())
    path = plain_tiff(tmp_path / "cut.tif", volume(), metadata=None)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidInput, match=r"cut\.tif cannot be used: .*is damaged or cut short"):
        list(open_clip(path, axis="z").frames())


def test_limits_hold_for_stacks(tmp_path: Path) -> None:
    path = plain_tiff(tmp_path / "v.tif", volume())
    with pytest.raises(TooLarge, match=r"v\.tif cannot be used: the image has 40 x 30 = 1,200 pixels and 1,000"):
        open_clip(path, ClipLimits(1000, 2**20))
    with pytest.raises(TooLarge, match=r"the array cannot be used: the image has 40 x 30"):
        open_clip(volume(), ClipLimits(1000, 2**20), axis="z")


def test_what_only_stacks_have(tmp_path: Path) -> None:
    Image.new("L", (20, 20)).save(tmp_path / "0.png")
    assert open_clip(tmp_path, axis="z").axis == "z"
    assert open_clip([tmp_path / "0.png"], axis="z").axis == "z"
    with pytest.raises(InvalidInput, match="is no stack: at, contrast and axes are for TIFF and Zarr stacks"):
        open_clip([tmp_path / "0.png"], contrast=(0, 1))
    clip = open_clip(tmp_path)
    assert open_clip(clip) is clip
    with pytest.raises(InvalidInput, match="the clip is open already"):
        open_clip(clip, axis="z")


def test_dimensions_of_xarray() -> None:
    class Named:
        values = volume((2, 5, 12, 18)).astype(np.uint8)
        dims, shape, dtype = ("channel", "z", "y", "x"), values.shape, values.dtype

        def __getitem__(self, index: Any) -> Values:
            return self.values[index]

    clip = open_clip(Named(), axis="z", at={"c": 1})
    np.testing.assert_array_equal(pixels(clip), Named.values[1])
    assert ArraySource(Named(), "it").dimensions[0].name == "c"


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_folder_of_deep_slices_has_one_contrast(suffix: str, tmp_path: Path) -> None:
    values = volume((12, 12, 18))
    values[3] //= 8  # by itself it would be as bright as the others
    for index, plane in enumerate(values):
        path = tmp_path / f"slice {index}.{suffix}"
        Image.fromarray(plane).save(path) if suffix == "png" else plain_tiff(path, plane)
    (tmp_path / "notes.txt").write_text("")
    clip = open_clip(tmp_path, axis="z")
    assert (clip.axis, clip.length, clip.size, clip.stem(10)) == ("z", 12, (18, 12), "slice 10")
    assert clip.contrast is not None
    assert "of 16 bits (percentiles" in clip.contrast.note
    assert clip.notices == [f"1 file of {tmp_path} ignored, which are no images: notes.txt"]
    np.testing.assert_array_equal(pixels(clip), clip.contrast.applied(values))
    Image.fromarray(values[0].astype(np.uint8)).save(tmp_path / f"slice 12.{suffix}")
    with pytest.raises(
        InvalidInput, match=r"frame 12 of .* has 1 channel\(s\) of uint8 and the first frame 1 of uint16"
    ):
        list(open_clip(tmp_path).frames())


def test_colours_of_a_folder(tmp_path: Path) -> None:
    values = volume((3, 12, 18, 3)).astype(np.uint8)
    for index, picture in enumerate(values):
        Image.fromarray(picture).save(tmp_path / f"{index}.png")
    np.testing.assert_array_equal(pixels(open_clip(tmp_path, contrast=PLAIN)), values)
    np.testing.assert_array_equal(pixels(open_clip(tmp_path, at={"c": 2})), values[..., 2])
    assert open_clip(tmp_path).frame(0).data == (tmp_path / "0.png").read_bytes()
