from __future__ import annotations

import base64
import io
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image, ImageDraw

from triton_sam.core import masks
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.masks import MaskSet
from triton_sam.core.rle import from_rle
from triton_sam.errors import InvalidInput, SetupError

Mask = npt.NDArray[np.bool_]

any_mask = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=40))


def disc(height: int, width: int, x: float, y: float, radius: float) -> Mask:
    rows, columns = np.mgrid[:height, :width]
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


def rectangle(height: int, width: int, x0: int, y0: int, x1: int, y1: int) -> Mask:
    mask = np.zeros((height, width), np.bool_)
    mask[y0:y1, x0:x1] = True
    return mask


def iou(first: Mask, second: Mask) -> float:
    return float((first & second).sum() / (first | second).sum())


# PNG


@given(any_mask)
def test_png_is_the_mask(mask: Mask) -> None:
    with Image.open(io.BytesIO(masks.png(mask))) as picture:
        assert picture.format == "PNG"
        assert picture.mode == "L"
        np.testing.assert_array_equal(np.asarray(picture), np.where(mask, 255, 0))


def test_png_of_a_view_into_a_larger_array() -> None:
    whole = np.random.default_rng(0).random((20, 30)) > 0.5
    for view in (whole[::2, ::3], whole.T, whole[::-1]):
        with Image.open(io.BytesIO(masks.png(view))) as picture:
            np.testing.assert_array_equal(np.asarray(picture) > 0, view)


def test_png_of_a_mask_is_small() -> None:
    assert len(masks.png(disc(1000, 1500, 700, 500, 300))) < 20_000


# encode and decode


@given(any_mask, st.sampled_from(["png", "rle", "bits"]))
def test_what_is_encoded_can_be_decoded(mask: Mask, form: str) -> None:
    document = masks.encode(mask, form)
    assert document["encoding"] == form
    assert (document["height"], document["width"]) == mask.shape
    found = masks.decode(document)
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 17, 33])
def test_bits_of_widths_that_do_not_fill_bytes(width: int) -> None:
    mask = np.random.default_rng(width).random((5, width)) > 0.5
    document = masks.encode(mask, "bits")
    assert len(base64.b64decode(document["data"])) == 5 * -(-width // 8)
    np.testing.assert_array_equal(masks.decode(document), mask)


def test_the_first_pixel_stands_in_the_highest_bit() -> None:
    mask = np.zeros((1, 9), np.bool_)
    mask[0, 0] = mask[0, 8] = True
    assert base64.b64decode(masks.encode(mask, "bits")["data"]) == b"\x80\x80"


@given(arrays(np.bool_, array_shapes(min_dims=3, max_dims=3, max_side=20)))
def test_packed_stacks(stack: npt.NDArray[np.bool_]) -> None:
    found = masks.unpack_bits(np.packbits(stack, axis=2), stack.shape[2])
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, stack)


def test_encode_polygon() -> None:
    mask = rectangle(40, 60, 10, 5, 30, 25)
    document = masks.encode(mask, "polygon")
    assert document["encoding"] == "polygon"
    assert document["data"] == masks.polygons(mask)


@pytest.mark.parametrize("form", ["jpeg", "", "logits", "PNG"])
def test_encode_knows_its_forms(form: str) -> None:
    with pytest.raises(InvalidInput, match="png, rle, polygon or bits"):
        masks.encode(np.ones((2, 2), np.bool_), form)


@pytest.mark.parametrize("form", ["polygon", "logits", None, "gif"])
def test_decode_knows_its_forms(form: str | None) -> None:
    with pytest.raises(InvalidInput, match="png, rle or bits"):
        masks.decode({"encoding": form, "width": 2, "height": 2, "data": ""})


@pytest.mark.parametrize("form", ["png", "bits"])
def test_decode_refuses_what_is_no_base64(form: str) -> None:
    with pytest.raises(InvalidInput, match="base64"):
        masks.decode({"encoding": form, "width": 2, "height": 2, "data": "no base64!"})


# polygons


@pytest.mark.parametrize(
    "mask",
    [
        rectangle(80, 120, 10, 20, 70, 60),
        rectangle(80, 120, 0, 0, 120, 80),
        disc(200, 300, 150, 100, 60),
        disc(60, 60, 30, 30, 12),
        disc(200, 300, 0, 0, 90),
    ],
    ids=["rectangle", "whole image", "disc", "small disc", "corner"],
)
def test_a_polygon_drawn_again_is_the_mask(mask: Mask) -> None:
    rings = masks.polygons(mask)
    assert len(rings) == 1
    canvas = Image.new("1", (mask.shape[1], mask.shape[0]))
    ImageDraw.Draw(canvas).polygon(rings[0], fill=1, outline=1)
    assert iou(np.asarray(canvas), mask) > 0.9


def test_a_rectangle_has_four_corners() -> None:
    (ring,) = masks.polygons(rectangle(80, 120, 10, 20, 70, 60))
    assert sorted(zip(ring[::2], ring[1::2], strict=True)) == [(10, 20), (10, 59), (69, 20), (69, 59)]
    assert all(type(value) is float for value in ring)


def test_each_part_has_its_ring_and_holes_have_none() -> None:
    mask = rectangle(80, 120, 5, 5, 40, 40) | disc(80, 120, 90, 50, 20)
    mask &= ~rectangle(80, 120, 15, 15, 25, 25)
    assert len(masks.polygons(mask)) == 2


def test_an_empty_mask_has_no_ring() -> None:
    assert masks.polygons(np.zeros((20, 20), np.bool_)) == []


def test_tolerance_saves_corners() -> None:
    mask = disc(200, 300, 150, 100, 60)
    assert len(masks.polygons(mask, 5.0)[0]) < len(masks.polygons(mask)[0]) < len(masks.polygons(mask, 0.0)[0])


def test_without_opencv_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SetupError, match=r"pip install .*\[server\]"):
        masks.polygons(np.ones((5, 5), np.bool_))


# full_size


def bilinear(values: npt.NDArray[np.float64], width: int, height: int) -> npt.NDArray[np.float64]:
    """torch's ``interpolate(mode="bilinear", align_corners=False)``, in plain numpy."""

    def axis(size: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        place = np.clip((np.arange(count) + 0.5) * size / count - 0.5, 0, size - 1)
        low = np.floor(place).astype(np.int64)
        return low, np.minimum(low + 1, size - 1), place - low

    top, bottom, down = axis(values.shape[0], height)
    left, right, across = axis(values.shape[1], width)
    rows = values[top] * (1 - down)[:, None] + values[bottom] * down[:, None]
    return rows[:, left] * (1 - across) + rows[:, right] * across


def assert_full_size_equals(reference: npt.NDArray[np.float64], found: Mask) -> None:
    """Equal wherever the reference is not within rounding of the threshold."""
    assert found.dtype == np.bool_
    assert found.shape == reference.shape
    certain = np.abs(reference) > 1e-3
    np.testing.assert_array_equal(found[certain], (reference > 0)[certain])


sizes = st.integers(1, 90)
seeds = st.integers(0, 2**32 - 1)


def logits_of(seed: int, side: int = 16) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(side, side)).astype(np.float32) * 5


@given(sizes, sizes, seeds)
def test_full_size_of_a_squashed_image(width: int, height: int, seed: int) -> None:
    logits = logits_of(seed)
    found = masks.full_size(logits, Frame(width, height, 64, ResizePolicy.SQUASH))
    assert_full_size_equals(bilinear(logits.astype(np.float64), width, height), found)


def padded_reference(logits: npt.NDArray[np.float32], frame: Frame) -> npt.NDArray[np.float64]:
    """SAM 1: up to the model's square, padding cut off, then to the original."""
    inner_width, inner_height = frame.resized
    square = bilinear(logits.astype(np.float64), frame.side, frame.side)
    return bilinear(square[:inner_height, :inner_width], frame.width, frame.height)


@given(sizes, sizes, seeds)
def test_full_size_of_a_padded_image(width: int, height: int, seed: int) -> None:
    logits = logits_of(seed)
    frame = Frame(width, height + (width == height), 64, ResizePolicy.PAD)
    if frame.resized != (64, 64):
        assert_full_size_equals(padded_reference(logits, frame), masks.full_size(logits, frame))


def test_full_size_of_a_square_image_under_the_padding_policy() -> None:
    """The reference goes through the model's square whether or not there is padding."""
    logits = logits_of(5)
    frame = Frame(150, 150, 64, ResizePolicy.PAD)
    assert_full_size_equals(padded_reference(logits, frame), masks.full_size(logits, frame))


def test_full_size_finds_the_object_where_it_is() -> None:
    expected = disc(480, 640, 200, 300, 90)
    for policy in ResizePolicy:
        frame = Frame(640, 480, 1024, policy)
        rows, columns = np.mgrid[:256, :256]
        centres = (np.stack([columns, rows], axis=-1) + 0.5) * 4
        x, y = np.moveaxis(frame.to_original(centres), -1, 0)
        logits = (90 - np.hypot(x - 200.5, y - 300.5)).astype(np.float32)
        assert iou(masks.full_size(logits, frame), expected) > 0.99


# overlay


def grow(mask: Mask, pixels: int) -> Mask:
    """The mask and all that lies within ``pixels`` of it, along both axes."""
    padded = np.pad(mask, pixels)
    reach = 2 * pixels + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach))
    return np.asarray(windows.any(axis=(2, 3)))


def test_overlay_tints_the_mask_and_its_border_only() -> None:
    picture = Image.new("RGB", (60, 40), (100, 100, 100))
    mask = disc(40, 60, 20, 20, 10)
    result = masks.overlay(picture, [mask])
    assert result.size == picture.size
    assert result.mode == "RGB"
    changed = (np.asarray(result) != 100).any(axis=2)
    assert changed[mask].all()
    assert not changed[~grow(mask, 3)].any()
    assert np.asarray(picture).min() == np.asarray(picture).max() == 100, "the original is left alone"


def test_overlay_gives_each_mask_its_colour() -> None:
    picture = Image.new("RGB", (80, 40), "black")
    stack = np.stack([disc(40, 80, 20, 20, 10), disc(40, 80, 60, 20, 10)])
    result = np.asarray(masks.overlay(picture, stack))
    assert result[20, 20].tolist() != result[20, 60].tolist()
    assert result[20, 40].tolist() == [0, 0, 0]


def test_overlay_of_nothing_is_a_copy() -> None:
    picture = Image.new("RGB", (30, 20), (1, 2, 3))
    result = masks.overlay(picture, [])
    assert result is not picture
    np.testing.assert_array_equal(np.asarray(result), np.asarray(picture))


def test_overlay_draws_points_green_and_red() -> None:
    result = masks.overlay(Image.new("RGB", (60, 40)), [], [(15.0, 20.0, 1), (45.0, 20.0, 0)])
    red, green, _ = result.getpixel((15, 20))
    assert green > 2 * red
    red, green, _ = result.getpixel((45, 20))
    assert red > 2 * green
    assert result.getpixel((30, 20)) == (0, 0, 0)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 3)])
def test_overlay_of_the_smallest_pictures(size: tuple[int, int]) -> None:
    picture = Image.new("RGB", size)
    result = masks.overlay(picture, [np.ones((size[1], size[0]), np.bool_)])
    assert result.size == size
    assert np.asarray(result).any(axis=2).all()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_overlay_on_other_pictures(mode: str) -> None:
    result = masks.overlay(Image.new(mode, (30, 20)), [disc(20, 30, 10, 10, 5)])
    assert (result.mode, result.size) == ("RGB", (30, 20))


# MaskSet


@pytest.fixture
def mask_set() -> MaskSet:
    stack = np.stack([rectangle(30, 40, 5, 5, 20, 20), disc(30, 40, 20, 15, 8), np.zeros((30, 40), np.bool_)])
    return MaskSet(stack, np.array([0.2, 0.9, 0.5], np.float32), np.array([0, 0, 1], np.int32))


def test_the_best_mask_has_the_highest_score(mask_set: MaskSet) -> None:
    assert len(mask_set) == 3
    np.testing.assert_array_equal(mask_set.best, mask_set.masks[1])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_mask_set_writes_each_of_its_masks(mask_set: MaskSet, index: int) -> None:
    mask = mask_set.masks[index]
    assert mask_set.png(index) == masks.png(mask)
    np.testing.assert_array_equal(from_rle(mask_set.rle(index)), mask)
    assert mask_set.polygons(index) == masks.polygons(mask)


def test_a_mask_set_writes_its_first_mask_by_default(mask_set: MaskSet) -> None:
    assert mask_set.png() == mask_set.png(0) != mask_set.png(1)
    assert mask_set.rle() == mask_set.rle(0)
    assert mask_set.polygons() == mask_set.polygons(0)


def test_a_mask_set_draws_all_its_masks(mask_set: MaskSet) -> None:
    picture = Image.new("RGB", (40, 30), "black")
    drawn = np.asarray(mask_set.overlay(picture)).any(axis=2)
    assert drawn[mask_set.masks.any(axis=0)].all()
    assert not drawn[29, 0]
