"""The bytes that a client sends for a path, an array or a Pillow image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.core.image_helpers import (
    EXIF_ORIENTATION,
    STORED,
    Pixels,
    decoded,
    noise,
    saved,
)
from triton_sam.core.images import file_bytes, to_rgb
from triton_sam.errors import InvalidInput


def test_bytes_go_as_they_are() -> None:
    for same in (b"anything", bytearray(b"anything"), memoryview(b"anything")):
        assert file_bytes(same) == b"anything"


def test_the_bytes_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cells.png").write_bytes(b"content")
    assert file_bytes(tmp_path / "cells.png") == b"content"
    assert file_bytes(str(tmp_path / "cells.png")) == b"content"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert file_bytes("~/cells.png") == b"content"


@pytest.mark.parametrize("name", ["missing.png", ".", "no/such/folder/x.png"])
def test_a_path_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInput) as caught:
        file_bytes(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["a\0b", "~no-such-user-anywhere/cells.png"])
def test_text_that_cannot_be_a_path(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot read the image"):
        file_bytes(text)


GREY = noise(7, 11)[:, :, 0]


@pytest.mark.parametrize(
    ("array", "seen"),
    [
        (GREY, GREY),
        (GREY[:, :, None], GREY),
        (GREY > 99, (GREY > 99) * np.uint8(255)),
        ((GREY > 99)[:, :, None], (GREY > 99) * np.uint8(255)),
        (GREY.astype(np.uint16) * 257, GREY),
        (GREY.astype(np.uint16)[:, :, None] * 257, GREY),
        (noise(7, 11), noise(7, 11)),
        (noise(14, 22)[::2, ::2], noise(14, 22)[::2, ::2]),
        (noise(7, 11)[:, ::-1], noise(7, 11)[:, ::-1]),
        (np.asfortranarray(noise(7, 11)), noise(7, 11)),
        (noise(11, 7).transpose(1, 0, 2), noise(11, 7).transpose(1, 0, 2)),
        (noise(7, 11)[:, :, ::-1], noise(7, 11)[:, :, ::-1]),
    ],
    ids=[
        "HW",
        "HW1",
        "bool",
        "bool HW1",
        "uint16",
        "uint16 HW1",
        "HW3",
        "every second",
        "mirrored",
        "fortran",
        "transposed",
        "bgr",
    ],
)
def test_arrays(array: Pixels, seen: Pixels) -> None:
    expected = seen if seen.ndim == 3 else np.repeat(seen[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(decoded(file_bytes(array)), expected)


def test_an_array_with_transparency() -> None:
    rgba = np.dstack([noise(7, 11), np.where(GREY > 99, 255, 0).astype(np.uint8)])
    found = decoded(file_bytes(rgba))
    np.testing.assert_array_equal(found[GREY > 99], noise(7, 11)[GREY > 99])
    assert found[GREY <= 99].min() == 255


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((3, 4, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((4, 4), np.complex64),
        np.full((4, 4), "x", object),
        np.array(5, np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_that_are_no_image(array: Pixels) -> None:
    with pytest.raises(InvalidInput, match="image array"):
        file_bytes(array)


@pytest.mark.parametrize("value", [None, 5, ["a.png"], object()])
def test_other_things_are_no_image(value: Any) -> None:
    with pytest.raises(InvalidInput, match=type(value).__name__):
        file_bytes(value)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "F", "I", "I;16"])
def test_pillow_images_look_the_same_on_the_server(mode: str) -> None:
    deep = {"F": np.float32, "I": np.int32, "I;16": np.uint16}
    if mode in deep:
        values = np.linspace(0, 65535, 77).astype(np.uint16).reshape(7, 11)
        picture = Image.fromarray(values.astype(deep[mode]))
    else:
        picture = Image.fromarray(noise(7, 11)).convert(mode)
    assert picture.mode == mode
    seen = np.asarray(to_rgb(picture.copy()))
    np.testing.assert_array_equal(decoded(file_bytes(picture)), seen)


@pytest.mark.parametrize("values", [[-500, 0, 500], [0, 100_000, 4_000_000]])
def test_a_pillow_image_of_wide_integers_keeps_its_contrast(values: list[int]) -> None:
    found = decoded(file_bytes(Image.fromarray(np.array([values], np.int32))))[0, :, 0]
    low, high = min(values), max(values)
    expected = [(value - low) / (high - low) * 255 for value in values]
    assert np.abs(found - np.array(expected)).max() <= 1


def test_a_pillow_image_with_values_that_are_no_numbers() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        file_bytes(Image.fromarray(np.full((3, 3), np.nan, np.float32)))


def test_a_pillow_image_of_a_cut_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    data = saved(Image.fromarray(noise(64, 64)), "JPEG")
    path.write_bytes(data[: len(data) // 2])
    with Image.open(path) as picture, pytest.raises(InvalidInput, match="damaged or cut short"):
        file_bytes(picture)


@pytest.mark.parametrize("orientation", sorted(STORED))
def test_a_pillow_image_is_sent_upright(orientation: int) -> None:
    upright = noise(20, 30)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    with Image.open(io.BytesIO(saved(stored, "PNG", exif=exif))) as picture:
        np.testing.assert_array_equal(decoded(file_bytes(picture)), upright)
