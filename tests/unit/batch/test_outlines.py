"""Outlines of masks: exact, valid, and with their holes."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from shapely import contains_xy
from shapely.geometry import shape

from triton_sam.batch.outputs.outlines import Ring, polygons_of
from triton_sam.core.rle import BoolArray, rle


def mask(*rows: str) -> BoolArray:
    return np.array([[letter == "#" for letter in row] for row in rows])


def twice_the_area(ring: Ring) -> int:
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring))


def check(pixels: BoolArray) -> None:
    polygons = polygons_of(rle(pixels))
    geometry = shape({"type": "MultiPolygon", "coordinates": polygons})
    assert geometry.is_valid
    assert geometry.area == pixels.sum()
    rows, columns = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    np.testing.assert_array_equal(contains_xy(geometry, columns + 0.5, rows + 0.5), pixels)
    for rings in polygons:
        assert [twice_the_area(ring) > 0 for ring in rings] == [True] + [False] * (len(rings) - 1)
        for ring in rings:
            corners = ring[:-1]
            assert ring[0] == ring[-1]
            assert len({tuple(corner) for corner in corners}) == len(corners)
            turns = [
                (b[0] == a[0]) != (c[0] == b[0]) for a, b, c in zip(ring[-2:-1] + ring, ring, ring[1:], strict=False)
            ]
            assert all(turns), "a corner on a straight line"


@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_any_mask_comes_back_from_its_outline(pixels: BoolArray) -> None:
    check(pixels)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.6, 0.8, 0.95])
def test_a_mask_of_noise(share: float) -> None:
    check(np.random.default_rng(0).random((70, 60)) < share)


@pytest.mark.parametrize(
    ("rows", "rings"),
    [
        (("...", "..."), []),
        (("###", "###"), [1]),
        (("#.", ".#"), [1, 1]),  # two that touch at a corner
        ((".#", "#."), [1, 1]),
        (("###", "#.#", "###"), [2]),
        (("####", "#.##", "##.#", "####"), [3]),  # holes that touch at a corner
        (("###", "#.#", "##."), [2]),  # a hole that touches the outside at a corner
        (("#####", "#...#", "#.#.#", "#...#", "#####"), [2, 1]),  # an island in a hole
        (("#######", "#.....#", "#.###.#", "#.#.#.#", "#.###.#", "#.....#", "#######"), [2, 2]),
        (("#####.###", "#.#.#.#.#", "#####.###"), [3, 2]),
    ],
)
def test_each_polygon_has_its_own_holes(rows: tuple[str, ...], rings: list[int]) -> None:
    polygons = polygons_of(rle(mask(*rows)))

    assert [len(polygon) for polygon in polygons] == rings
    check(mask(*rows))


def test_a_ring_begins_at_its_top_left_and_goes_right() -> None:
    assert polygons_of(rle(mask("...", ".##"))) == [[[[1, 1], [3, 1], [3, 2], [1, 2], [1, 1]]]]


def test_runs_that_other_programs_write() -> None:
    whole = {"size": [2, 3], "counts": [0, 2, 0, 1, 0, 1, 2]}  # in pieces, with background of no pixels between

    assert polygons_of(whole) == [[[[0, 0], [2, 0], [2, 2], [0, 2], [0, 0]]]]


def test_numbers_are_json() -> None:
    assert json.dumps(polygons_of(rle(mask("#")))) == "[[[[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]]]"
