"""Arrays of every kind: what is clear is taken as a file is, and the advice for the rest works."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.unit.core.image_helpers import Pixels, decoded, noise
from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput

RGB = noise(7, 11)
GREY = RGB[:, :, 0]


@pytest.mark.parametrize(
    "array",
    [
        RGB.astype(np.uint16) * 257,
        RGB / 255,
        (RGB / 255).astype(np.float32),
        RGB.astype(np.float32),
        RGB.astype(np.int32),
        RGB.astype(np.int64),
        RGB.astype(np.uint16),
        RGB.astype(">u2") * 257,
        np.dstack([RGB, np.full((7, 11), 255, np.uint8)]),
        np.dstack([RGB / 255, np.ones((7, 11))]),
        np.dstack([RGB, np.full((7, 11), 255, np.uint8)]).astype(np.uint16) * 257,
        np.dstack([RGB, np.full((7, 11), 255, np.uint8)]).astype(np.int32),
    ],
    ids=lambda array: f"{array.dtype} {array.shape} {array.max():g}",
)
def test_the_same_picture_in_every_type(array: Pixels) -> None:
    assert np.abs(decoded(file_bytes(array)).astype(int) - RGB).max() <= 1


def test_twelve_bits_in_sixteen() -> None:
    values = (RGB.astype(np.uint16) * 4095 // 255).astype(np.uint16)
    values[0, 0] = 4095
    assert np.abs(decoded(file_bytes(values)) - values * (255 / 4095)).max() <= 0.5


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("spread", [(0, 1), (0, 200), (-300, 900), (0, 30_000)])
def test_an_array_is_taken_as_a_file_of_it(dtype: str, spread: tuple[int, int]) -> None:
    low, high = spread
    if dtype == "uint16" and low < 0:
        low = 0
    values = (np.linspace(low, high, 600).reshape(20, 30)).astype(dtype)
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values)
    np.testing.assert_array_equal(decoded(file_bytes(values)), decoded(buffer.getvalue()))


def test_half_transparent_floats() -> None:
    rgba = np.dstack([np.full((4, 4, 3), 0.5), np.full((4, 4), 0.5)])
    assert np.abs(decoded(file_bytes(rgba)).astype(int) - 191).max() <= 1


@pytest.mark.parametrize(
    ("array", "advice"),
    [
        (np.moveaxis(RGB, 2, 0), "numpy.moveaxis(image, 0, 2)"),
        (RGB[None, :, :, 0], "image[0]"),
        (RGB[:, :, :2], "image[:, :, 0]"),
        (np.stack([GREY, GREY]), "image[0]"),
        (np.stack([RGB, RGB]), "image[0]"),
        (np.where(GREY > 99, np.nan, GREY / 255), "numpy.nan_to_num(image, posinf=0, neginf=0)"),
        (np.where(GREY > 99, np.inf, GREY / 255), "numpy.nan_to_num(image, posinf=0, neginf=0)"),
        (GREY.astype(np.complex64), "numpy.abs(image)"),
        (GREY.astype(object), "numpy.asarray(image, dtype='float32')"),
        (np.dstack([RGB / 255, np.full((7, 11), 255.0)]), "image[:, :, :3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_advice_works(array: Any, advice: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        file_bytes(array)
    assert advice in str(caught.value)
    conversions: dict[str, Any] = {
        "numpy.moveaxis(image, 0, 2)": lambda image: np.moveaxis(image, 0, 2),
        "image[0]": lambda image: image[0],
        "image[:, :, 0]": lambda image: image[:, :, 0],
        "image[:, :, :3]": lambda image: image[:, :, :3],
        "numpy.nan_to_num(image, posinf=0, neginf=0)": lambda image: np.nan_to_num(image, posinf=0, neginf=0),
        "numpy.abs(image)": np.abs,
        "numpy.asarray(image, dtype='float32')": lambda image: np.asarray(image, dtype="float32"),
    }
    assert decoded(file_bytes(conversions[advice](array))).shape == (7, 11, 3)
