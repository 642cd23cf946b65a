"""The label image."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from triton_sam.core.everything.labels import encoded_labels, label_image, label_png, label_type
from triton_sam.core.rle import rle

Masks = npt.NDArray[np.bool_]


@given(arrays(np.bool_, st.tuples(st.integers(0, 6), st.integers(1, 12), st.integers(1, 12))))
def test_smaller_masks_are_on_top(masks: Masks) -> None:
    count, height, width = masks.shape
    labels = label_image([rle(mask) for mask in masks], width, height)
    expected = np.zeros((height, width), int)
    # Each pixel has the smallest mask that covers it, the first of equal ones.
    for row, column in np.ndindex(height, width):
        covering = [index for index in range(count) if masks[index, row, column]]
        if covering:
            expected[row, column] = 1 + min(covering, key=lambda index: (masks[index].sum(), index))
    np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.uint8


@pytest.mark.parametrize(
    ("count", "kind", "mode"),
    [(255, np.uint8, "L"), (256, np.uint16, "I;16"), (65_535, np.uint16, "I;16"), (65_536, np.uint32, "RGB")],
)
def test_the_type_follows_the_count(count: int, kind: type, mode: str) -> None:
    assert label_type(count) is kind
    labels = np.array([[1, 0], [0, count]], kind)
    with Image.open(io.BytesIO(label_png(labels))) as picture:
        assert picture.mode in (mode, "I")
        pixels = np.asarray(picture).astype(np.int64)
    if mode == "RGB":
        pixels = pixels @ [1, 256, 65_536]
    np.testing.assert_array_equal(pixels, labels)


def test_many_masks() -> None:
    one, other = {"size": [2, 2], "counts": [0, 1, 3]}, {"size": [2, 2], "counts": [3, 1]}
    labels = label_image([one] * 299 + [other], 2, 2)
    assert labels.dtype == np.uint16
    assert labels.tolist() == [[1, 0], [0, 300]]


def test_json_form() -> None:
    document = encoded_labels([rle(np.eye(3, dtype=np.bool_))], 3, 3)
    assert (document["encoding"], document["width"], document["height"]) == ("labels", 3, 3)
    with Image.open(io.BytesIO(base64.b64decode(document["data"]))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), np.eye(3))
