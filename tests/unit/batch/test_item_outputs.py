"""Label images and overlays of single images."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given
from PIL import Image

from tests.unit.batch.made_results import disk, mask_lists, record_of, result_of
from triton_sam.batch.outputs.choosing import LABEL_FORMATS, check_outputs, make_writers
from triton_sam.batch.records import ItemResult, MaskRecord
from triton_sam.core.rle import BoolArray
from triton_sam.errors import InvalidInput

TYPES = {"tiff16": np.uint16, "tiff32": np.uint32}


def named(result: ItemResult, stem: str) -> ItemResult:
    return replace(result, item=replace(result.item, stem=stem))


def png_of(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def no_picture() -> bytes:
    raise AssertionError("a label image needs no picture")


def written(folder: Path, result: ItemResult, form: str, stem: str = "image") -> np.ndarray:
    (writer,) = make_writers(["labels", "coco"], folder, form)
    writer.write(named(result, stem), no_picture)
    if form != "png":
        return np.asarray(tifffile.imread(folder / "labels" / f"{stem}.tif"))
    with Image.open(folder / "labels" / f"{stem}.png") as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("form", LABEL_FORMATS)
@given(masks=mask_lists())
def test_labels_are_the_masks(tmp_path_factory: pytest.TempPathFactory, form: str, masks: list[BoolArray]) -> None:
    height, width = masks[0].shape if masks else (3, 5)
    result = result_of([record_of(mask) for mask in masks], width, height)

    labels = written(tmp_path_factory.mktemp("job"), result, form)

    assert labels.shape == (height, width)
    assert labels.dtype == TYPES.get(form, np.uint8)
    np.testing.assert_array_equal(labels > 0, np.any(masks, axis=0) if masks else np.zeros((height, width), np.bool_))
    for row, column in zip(*np.nonzero(labels), strict=True):
        here = [(mask.sum(), number) for number, mask in enumerate(masks, 1) if mask[row, column]]
        assert labels[row, column] == min(here)[1]


def strip(count: int) -> ItemResult:
    """An image of one row with a mask for each pixel."""
    masks = [
        MaskRecord({"size": [1, count], "counts": [index, 1, count - index - 1]}, 1, (index, 0, 1, 1), 0.9)
        for index in range(count)
    ]
    return result_of(masks, count, 1)


def test_more_masks_than_8_bits_hold(tmp_path: Path) -> None:
    labels = written(tmp_path, strip(256), "png")

    assert labels.dtype.itemsize >= 2
    np.testing.assert_array_equal(labels[0], np.arange(1, 257))


@pytest.mark.parametrize("form", ["png", "tiff16"])
def test_too_many_masks_for_16_bits_fail_this_image_and_name_the_fix(tmp_path: Path, form: str) -> None:
    one = record_of(np.ones((1, 1), np.bool_))
    result = result_of([one] * 65_536, 1, 1, name="cells.tif")

    with pytest.raises(InvalidInput, match=f"cells.tif has 65,536 masks, and a label image as {form} .*choose tiff32"):
        written(tmp_path, result, form)
    assert not list(tmp_path.rglob("*.*"))


def test_what_16_bits_do_not_hold_is_kept_in_32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.batch.outputs.labels._MOST_OF_16_BITS", 3)  # 65,536 masks take seconds

    assert written(tmp_path, strip(4), "tiff32").tolist() == [[1, 2, 3, 4]]
    with pytest.raises(InvalidInput, match="tiff32"):
        written(tmp_path, strip(4), "tiff16")


def test_folders_of_a_stem_are_made_and_a_second_time_writes_the_same(tmp_path: Path) -> None:
    result = result_of([record_of(disk(40, 30, 12, 15, 9))], 40, 30)
    stem = "train/plate 1/ä #4.x"
    writers = make_writers(["labels", "overlays"], tmp_path, "tiff16")

    def write() -> dict[Path, bytes]:
        for writer in writers:
            writer.write(named(result, stem), lambda: png_of(Image.new("RGB", (40, 30), "navy")))
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    first = write()

    assert set(first) == {tmp_path / "labels" / f"{stem}.tif", tmp_path / "overlays" / f"{stem}.jpg"}
    assert write() == first


def test_the_page_knows_a_label_image_by_its_text(tmp_path: Path) -> None:
    written(tmp_path, result_of([], 3, 2), "png")

    with Image.open(tmp_path / "labels" / "image.png") as picture:
        assert "labels" in picture.text  # type: ignore[attr-defined]


def test_tiffs_are_compressed_without_imagecodecs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['imagecodecs'] = None\n"
        "import numpy, pathlib, tifffile\n"
        "from triton_sam.batch.outputs.labels import _save_tiff\n"
        "labels = numpy.arange(90000, dtype=numpy.uint32).reshape(300, 300) // 1000\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "with path.open('wb') as file: _save_tiff(labels, file)\n"
        "assert (tifffile.imread(path) == labels).all()\n"
    )

    subprocess.run([sys.executable, "-c", code, tmp_path / "labels.tif"], check=True, timeout=60)

    assert (tmp_path / "labels.tif").stat().st_size < 20_000


@pytest.mark.parametrize(("width", "height"), [(60, 40), (4096, 1000), (3000, 1)])
def test_overlays_have_the_picture_and_its_masks(tmp_path: Path, width: int, height: int) -> None:
    mask = np.zeros((height, width), np.bool_)
    mask[:, : width // 2] = True
    (writer,) = make_writers(["overlays"], tmp_path)

    result = named(result_of([record_of(mask)], width, height), "image")
    path = writer.write(result, lambda: png_of(Image.new("L", (width, height), 100)))
    assert path == tmp_path / "overlays" / "image.jpg"

    with Image.open(tmp_path / "overlays" / "image.jpg") as picture:
        assert picture.format == "JPEG"
        scale = min(1, 2048 / width)
        assert picture.size == (round(width * scale), max(1, round(height * scale)))
        red, _, blue = picture.getpixel((picture.width // 4, picture.height // 2))  # type: ignore[misc]
        assert red > blue + 50, "tinted in the first colour"
        right = np.asarray(picture)[:, 3 * picture.width // 4 :].astype(int)
        assert abs(right - 100).max() <= 4, "as it was"


def test_a_picture_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    (writer,) = make_writers(["overlays"], tmp_path)

    def gone() -> bytes:
        raise InvalidInput("the file is gone")

    with pytest.raises(InvalidInput, match="gone"):
        writer.write(result_of([], 4, 4), gone)
    assert not list(tmp_path.iterdir())


def test_names_are_checked_at_the_start() -> None:
    check_outputs(["coco", "geojson", "labels", "overlays", "report"], "tiff32")
    with pytest.raises(InvalidInput, match="no output 'coc': choose among coco, geojson, labels, overlays"):
        check_outputs(["coc"])
    with pytest.raises(InvalidInput, match="not written as 'gif': choose png, tiff16 or tiff32"):
        make_writers(["labels"], Path(), "gif")


def test_nothing_is_written_for_each_image_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert make_writers(["coco", "report"], tmp_path) == []
