"""Random TIFF layouts: the pixels are tifffile's own, or the file is refused by name."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tifffile
from hypothesis import given

from tests.unit.core.image_helpers import STORED, Pixels, open_image
from tests.unit.core.tiff_layouts import Layout, layouts
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.errors import InvalidInput


def read_by_tifffile(layout: Layout) -> Pixels:
    """[H,W,C], upright."""
    values = tifffile.imread(io.BytesIO(layout.data))
    if values.ndim == 2:
        values = values[:, :, None]
    elif layout.options.get("planarconfig") == "separate":
        values = np.moveaxis(values, 0, 2)
    inverse = {6: 8, 8: 6}.get(layout.orientation, layout.orientation)
    return np.ascontiguousarray(STORED[inverse](values))


def seen(values: Pixels) -> Pixels:
    """The rule for samples of any depth, written anew in plain floats -> 0 to 255."""
    numbers = values.astype(np.float64)
    low, high = numbers.min(), numbers.max()
    if values.dtype == np.uint8:
        return numbers
    if values.dtype.kind == "f":
        black, white = (
            (0, 1) if low >= 0 and 1 / 16 <= high <= 1 else (0, 255) if low >= 0 and 1 < high <= 255 else (low, high)
        )
    elif low >= 0 and high < 65536:
        depths = [depth for depth in range(8, 17) if high < 2**depth]
        black, white = 0, 2 ** depths[0] - 1
    else:
        black, white = low, high
    return (numbers - black) * 255 / (white - black) if white > black else np.zeros_like(numbers)


def expected_picture(layout: Layout) -> Pixels:
    """[H,W,3] of 0 to 255, transparency on white."""
    values = read_by_tifffile(layout)
    colours = 3 if layout.photometric == "rgb" else 1
    front = seen(values[:, :, :colours])
    if layout.photometric == "miniswhite":
        front = 255 - np.round(front)
    kind = layout.options.get("extrasamples", ["unspecified"])[0]
    if kind != "unspecified":
        alpha = values[:, :, 3].astype(np.float64)
        if values.dtype.kind != "f":
            brightest = values[:, :, :3].max() if values.dtype != np.uint8 else 255
            top = max(int(values[:, :, 3].max()), min(int(brightest), 65535), 255)
            alpha /= 2 ** top.bit_length() - 1
        front = (front * alpha[:, :, None] if kind == "unassalpha" else front) + 255 * (1 - alpha[:, :, None])
    return np.repeat(front, 3 // front.shape[2], axis=2).clip(0, 255)


def has_no_opacity(layout: Layout) -> bool:
    """Whether the fourth channel is declared as transparency but is not one."""
    if layout.options.get("extrasamples", ["unspecified"])[0] == "unspecified":
        return False
    alpha = layout.values[3]
    return bool(alpha.min() < 0 or alpha.max() >= 2**16 or (alpha.dtype.kind == "f" and alpha.max() > 1))


def refusal_of(layout: Layout) -> str | None:
    """Words of the refusal that the file must get; None for a picture."""
    channels = len(layout.values)
    if layout.photometric != "rgb" and channels > 1:
        return f"{channels} channels"
    return "transparency" if has_no_opacity(layout) else None


@given(layouts())
def test_a_picture_or_a_refusal_by_name(layout: Layout) -> None:
    words = refusal_of(layout)
    if words is not None:
        with pytest.raises(InvalidInput, match=words):
            open_image(layout.data).pixels()
        return
    image = open_image(layout.data)
    found = np.asarray(image.pixels())
    assert found.shape[:2][::-1] == image.size
    assert np.abs(found - expected_picture(layout)).max() <= 1.01


@given(layouts())
def test_the_samples_of_all_planes(layout: Layout) -> None:
    """Also of files that are refused as pictures."""
    planes = ImagePlanes(layout.data, max_bytes=10**8, max_pixels=10**8)
    assert planes.describe().channels == len(layout.values)
    found = planes.page(0).values
    expected = np.moveaxis(read_by_tifffile(layout), 2, 0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
