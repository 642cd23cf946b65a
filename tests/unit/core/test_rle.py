from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as coco

from triton_sam.core import masks
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.rle import _pack_counts, from_rle, rle, rle_of_columns, rle_of_logits
from triton_sam.errors import InvalidInput

Mask = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.float32]

any_mask = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=40))


def disc(height: int, width: int, x: float, y: float, radius: float) -> Mask:
    rows, columns = np.mgrid[:height, :width]
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


@given(any_mask)
def test_rle_is_what_pycocotools_writes(mask: Mask) -> None:
    expected = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    found = rle(mask)
    assert found["size"] == list(mask.shape) == list(expected["size"])
    assert isinstance(found["counts"], str)
    assert found["counts"].encode() == expected["counts"]


def test_rle_of_long_runs_is_what_pycocotools_writes() -> None:
    for mask in (
        disc(1000, 1500, 700, 500, 300),
        np.zeros((900, 800), bool),
        np.ones((900, 800), bool),
        np.random.default_rng(0).random((200, 300)) > 0.5,
    ):
        expected = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert rle(mask)["counts"].encode() == expected["counts"]


def columns_of(mask: Mask) -> npt.NDArray[np.uint8]:
    """[H,W] -> [W,ceil(H/8)], spare bits like the column's last pixel."""
    spare = -mask.shape[0] % 8
    return np.ascontiguousarray(np.packbits(np.pad(mask, ((0, spare), (0, 0)), mode="edge").T, axis=1))


def smooth_mask(height: int, width: int, seed: int) -> Mask:
    """Some large parts, as a model's masks have."""
    logits = np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32)
    return np.asarray(cv2.resize(logits, (width, height), interpolation=cv2.INTER_LINEAR) > 0)


@given(arrays(np.bool_, st.tuples(st.integers(1, 70), st.integers(1, 70))))
def test_an_rle_of_packed_columns_is_that_of_the_mask(mask: Mask) -> None:
    assert rle_of_columns(columns_of(mask), mask.shape[0]) == rle(mask)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 9))
def test_an_rle_of_packed_columns_with_few_runs_is_that_of_the_mask(height: int, width: int, seed: int) -> None:
    last = np.zeros((height, width), bool)
    last[-1, -1] = True
    for mask in (last, ~last, np.zeros_like(last), np.ones_like(last), smooth_mask(height, width, seed)):
        assert rle_of_columns(columns_of(mask), height) == rle(mask)


@pytest.mark.parametrize("height", [1024, 1023, 1025])
def test_an_rle_of_packed_columns_of_a_photograph(height: int) -> None:
    """As slices of several masks, which begin at any address."""
    stack = [smooth_mask(height, 333, seed) for seed in range(3)]
    packed = np.stack([columns_of(mask) for mask in stack])
    for columns, mask in zip(packed, stack, strict=True):
        expected = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert rle_of_columns(columns, height) == {"size": [height, 333], "counts": expected["counts"].decode()}


@given(st.lists(st.integers(0, 2**20) | st.integers(0, 40), min_size=1, max_size=12))
def test_counts_of_any_length_are_what_pycocotools_writes(counts: list[int]) -> None:
    size = [1, sum(counts)]
    expected = coco.frPyObjects({"size": size, "counts": counts}, *size)
    assert _pack_counts(np.array(counts)).encode() == expected["counts"]


@given(any_mask)
def test_rle_can_be_read_back_in_every_form(mask: Mask) -> None:
    np.testing.assert_array_equal(from_rle(rle(mask)), mask)
    np.testing.assert_array_equal(from_rle(coco.encode(np.asfortranarray(mask.astype(np.uint8)))), mask)
    runs, value = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != value:
            runs.append(0)
            value = pixel
        runs[-1] += 1
    np.testing.assert_array_equal(from_rle({"size": list(mask.shape), "counts": runs}), mask)


@pytest.mark.parametrize("counts", [[3], [5], [], [2, 3], [5, -1], [-1, 5], "", "3", "P" * 40 + "0", "zz"])
def test_an_rle_that_does_not_fill_the_image(counts: Any) -> None:
    with pytest.raises(InvalidInput, match="2 x 2"):
        from_rle({"size": [2, 2], "counts": counts})


# logits -> RLE


def assert_is_the_resized(logits: Logits, document: dict[str, Any], height: int, width: int) -> None:
    """Equal to OpenCV's resize, pixel for pixel, but where its value is zero up to rounding."""
    resized = cv2.resize(logits, (width, height), interpolation=cv2.INTER_LINEAR)
    found = from_rle(document)
    unequal = found != (resized > 0)
    assert (np.abs(resized[unequal]) <= 1e-6 * max(1.0, float(np.abs(logits).max()))).all()
    assert rle(found) == document, "the runs are not in their shortest form"


@given(
    st.integers(2, 24), st.integers(1, 24), st.floats(2, 9), st.integers(1, 90), st.integers(0, 10**6), st.booleans()
)
def test_the_rle_of_logits_is_that_of_the_enlarged_mask(
    rows: int, columns: int, factor: float, width: int, seed: int, whole_numbers: bool
) -> None:
    logits = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    if whole_numbers:
        logits = np.round(logits)  # with many zeros, which are background
    height = int(np.ceil(rows * factor))
    assert_is_the_resized(logits, rle_of_logits(logits, height, width), height, width)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_the_rle_of_logits_all_alike(value: float) -> None:
    document = rle_of_logits(np.full((4, 5), value, np.float32), 20, 30)
    assert document == rle(np.full((20, 30), value > 0))


@pytest.mark.parametrize("policy", list(ResizePolicy))
@pytest.mark.parametrize(("width", "height"), [(2400, 1800), (1800, 2400), (3000, 700), (640, 480), (900, 5000)])
def test_the_rle_of_a_large_image_is_that_of_its_pixels(policy: ResizePolicy, width: int, height: int) -> None:
    rng = np.random.default_rng(width)
    logits = cv2.GaussianBlur(rng.normal(size=(256, 256)).astype(np.float32), (0, 0), 9) * 40
    frame = Frame(width, height, 1024, policy)
    found = masks.full_size_rle(logits, frame)
    assert (found["encoding"], found["width"], found["height"]) == ("rle", width, height)
    unequal = from_rle(found["data"]) != masks.full_size(logits, frame)
    assert unequal.sum() <= 3, "more than what rounding explains"
