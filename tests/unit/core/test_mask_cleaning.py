"""Cleaning of masks, compared with a reference on scipy's labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import ndimage

from tests.unit.core.prompt_helpers import parse, refused
from triton_sam.core.mask_cleaning import Cleaning, clean_mask, cleaning_from
from triton_sam.errors import InvalidInput

Mask = npt.NDArray[np.bool_]
POINT = {"points": [[1, 1]]}
EDGES, EDGES_AND_CORNERS = ndimage.generate_binary_structure(2, 1), ndimage.generate_binary_structure(2, 2)

sizes = st.integers(0, 30)
#: Of few and of many regions: noise of either kind, and noise in blocks of 3 x 3 pixels.
any_mask = st.one_of(
    arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=24)),
    arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=9)).map(
        lambda small: np.kron(small, np.ones((3, 3))) > 0
    ),
    st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).random((30, 40)) > 0.15),
)


def reference(mask: Mask, holes: int, islands: int) -> Mask:
    """Region by region, holes first."""
    result = mask.copy()
    regions, count = ndimage.label(~mask, EDGES)
    border = {*regions[0], *regions[-1], *regions[:, 0], *regions[:, -1]}
    for label in set(range(1, count + 1)) - border:
        if (regions == label).sum() < holes:
            result[regions == label] = True
    regions, count = ndimage.label(result, EDGES_AND_CORNERS)
    areas = [int((regions == label).sum()) for label in range(1, count + 1)]
    for label, area in enumerate(areas, 1):
        if area < islands and area < max(areas):
            result[regions == label] = False
    return result


@given(any_mask, sizes, sizes)
def test_equals_the_reference(mask: Mask, holes: int, islands: int) -> None:
    before = mask.copy()
    np.testing.assert_array_equal(clean_mask(mask, Cleaning(holes, islands)), reference(mask, holes, islands))
    np.testing.assert_array_equal(mask, before)


@given(any_mask, sizes, sizes)
def test_cleaning_twice_changes_nothing_more(mask: Mask, holes: int, islands: int) -> None:
    """Removing islands may open no new hole, and filling holes joins islands before they are counted."""
    once = clean_mask(mask, Cleaning(holes, islands))
    np.testing.assert_array_equal(clean_mask(once, Cleaning(holes, islands)), once)


@given(any_mask, st.integers(0, 2000), st.integers(0, 2000))
def test_an_object_stays_one(mask: Mask, holes: int, islands: int) -> None:
    cleaned = clean_mask(mask, Cleaning(holes, islands))
    assert cleaned.any() == mask.any()
    np.testing.assert_array_equal(cleaned[[0, -1]] & ~mask[[0, -1]], np.zeros((2, mask.shape[1])))


def test_the_image_border_ends_a_hole() -> None:
    """Otherwise an object in a corner of a small image would become the whole image."""
    mask = np.zeros((6, 6), np.bool_)
    mask[:3, :3] = True
    np.testing.assert_array_equal(clean_mask(mask, Cleaning(1000, 1000)), mask)


def test_corners_join_islands_and_part_holes() -> None:
    ring = np.ones((5, 5), np.bool_)
    ring[1, 1] = ring[2, 2] = False  # two holes of one pixel
    assert clean_mask(ring, Cleaning(2, 0)).all()
    diagonal = np.eye(5, dtype=np.bool_)  # one island of five pixels
    diagonal[0, 4] = True
    np.testing.assert_array_equal(clean_mask(diagonal, Cleaning(0, 5)), np.eye(5, dtype=np.bool_))


def test_equally_large_islands_all_stay() -> None:
    pair = np.zeros((3, 7), np.bool_)
    pair[1, [1, 5]] = True
    np.testing.assert_array_equal(clean_mask(pair, Cleaning(0, 100)), pair)


# the field of a prompt


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (0, None),
        ({}, None),
        ({"holes": 0, "islands": 0}, None),
        (64, Cleaning(64, 64)),
        (np.int64(7), Cleaning(7, 7)),
        ({"holes": 5}, Cleaning(5, 0)),
        ({"islands": 9, "holes": 1}, Cleaning(1, 9)),
        (Cleaning(3, 4), Cleaning(3, 4)),
    ],
)
def test_forms_of_clean(value: Any, expected: Cleaning | None) -> None:
    assert cleaning_from(value) == expected


@pytest.mark.parametrize(
    "value",
    [-1, 1.5, True, "64", [64], 10**9 + 1, {"holes": -1}, {"islands": None}, {"holes": 1, "area": 2}, {1: 2}],
)
def test_other_forms_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="clean") as caught:
        cleaning_from(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_clean_of_a_prompt() -> None:
    assert parse(POINT).clean is None
    assert parse(POINT | {"clean": 0}).clean is None
    assert parse(POINT | {"clean": {"islands": 12}}).clean == Cleaning(0, 12)
    assert json.loads(json.dumps(Cleaning(1, 2).as_json())) == {"holes": 1, "islands": 2}
    refused(POINT | {"clean": "much"}, "clean", "holes", "'much'")
    refused(POINT | {"clean": 64, "format": "logits"}, "clean", "png, rle, polygon or bits")
    assert parse(POINT | {"clean": 0, "format": "logits"}).clean is None
