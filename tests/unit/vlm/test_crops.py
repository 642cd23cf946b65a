"""The way back from what a model sees to the original's pixels, compared with what transformers really shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPImageProcessor

from triton_sam.engines.vlm.crops import Crop

pytestmark = pytest.mark.torch

SIDES = st.integers(8, 400)
SIDE = 56


def square() -> Any:
    return SimpleNamespace(do_resize=True, size={"height": SIDE, "width": SIDE}, do_center_crop=False)


def centred() -> Any:
    crop = {"height": SIDE, "width": SIDE}
    return SimpleNamespace(do_resize=True, size={"shortest_edge": SIDE}, do_center_crop=True, crop_size=crop)


def untouched() -> Any:
    return SimpleNamespace(do_resize=False, do_center_crop=False)


@given(SIDES, SIDES)
def test_squeezed_into_a_square_it_is_the_whole_image(width: int, height: int) -> None:
    assert Crop.of(square(), (width, height)).to_original([0, 0, 1, 1]) == [0, 0, width, height]


@given(SIDES, SIDES)
def test_without_resizing_it_is_the_whole_image(width: int, height: int) -> None:
    assert Crop.of(untouched(), (width, height)).to_original([0, 0, 1, 1]) == [0, 0, width, height]


@given(SIDES, SIDES)
def test_a_centre_crop_is_the_middle_square(width: int, height: int) -> None:
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    wanted = [left, top, left + side, top + side]
    assert Crop.of(centred(), (width, height)).to_original([0, 0, 1, 1]) == pytest.approx(wanted, abs=0.02)


@given(SIDES, SIDES, st.sampled_from(["square", "centred", "bordered", "untouched"]), st.data())
def test_boxes_stay_inside_the_image_and_in_order(width: int, height: int, kind: str, data: st.DataObject) -> None:
    bordered = SimpleNamespace(do_resize=False, do_center_crop=True, crop_size={"height": 300, "width": 300})
    processor = {"square": square(), "centred": centred(), "untouched": untouched(), "bordered": bordered}[kind]
    shares = st.floats(-0.5, 1.5)
    x0, y0, x1, y1 = (data.draw(shares) for _ in range(4))
    box = Crop.of(processor, (width, height)).to_original([x0, y0, x1, y1])
    if box is None:  # nothing of the image is in it
        return
    assert 0 <= box[0] < box[2] <= width
    assert 0 <= box[1] < box[3] <= height
    assert box == Crop.of(processor, (width, height)).to_original([x1, y1, x0, y0])


def test_a_box_beside_what_is_there_is_none() -> None:
    assert Crop.of(square(), (100, 50)).to_original([1.1, 0.2, 1.4, 0.6]) is None
    assert Crop.of(square(), (100, 50)).to_original([0.5, 0.2, 0.5, 0.6]) is None


@given(st.integers(20, 300), st.integers(20, 300), st.floats(0.1, 0.9), st.floats(0.1, 0.9), st.booleans())
def test_a_mark_lies_where_it_is_seen(width: int, height: int, share_x: float, share_y: float, crops: bool) -> None:
    """A white half on black: its edge in transformers' pixels is the edge in the original."""
    size = {"shortest_edge": SIDE} if crops else {"height": SIDE, "width": SIDE}
    processor = CLIPImageProcessor(
        size=size, crop_size={"height": SIDE, "width": SIDE}, do_normalize=False, do_center_crop=crops
    )
    crop = Crop.of(processor, (width, height))
    for axis, share, length in ((1, share_x, width), (0, share_y, height)):
        edge = int(share * length)
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[(slice(None), slice(edge, None)) if axis else (slice(edge, None),)] = 255
        seen = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0].mean(axis=(0, 2 - axis))
        bright = float(np.clip(seen, 0, 1).sum()) / SIDE  # share of what the model sees behind the edge
        if not 0 < bright < 1:
            continue
        corner = [1 - bright if axis else 0.0, 0.0 if axis else 1 - bright, 1, 1]
        pixel = (width if axis else height) / SIDE if not crops else min(width, height) / SIDE
        assert crop.to_original(corner)[0 if axis else 1] == pytest.approx(edge, abs=1.5 * pixel + 1)


def test_sizes_of_a_real_processor() -> None:
    processor = CLIPImageProcessor(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224})
    assert Crop.of(processor, (448, 224)).to_original([0, 0, 0.5, 1]) == [112, 0, 224, 224]
