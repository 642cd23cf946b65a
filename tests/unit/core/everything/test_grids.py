"""Grids, crops and chunks, against the published definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.everything import published_crop_boxes, published_point_grid
from triton_sam.core.everything.grids import crop_boxes, layer_grids, plan, point_grid
from triton_sam.core.everything.options import EverythingOptions

sides = st.integers(1, 2000)


@given(st.integers(1, 128))
def test_a_grid_is_the_published_one(side: int) -> None:
    np.testing.assert_allclose(point_grid(side), published_point_grid(side), atol=1e-12)


@given(sides, sides, st.integers(0, 3), st.floats(0, 1))
def test_crops_are_the_published_ones(width: int, height: int, layers: int, ratio: float) -> None:
    published = published_crop_boxes(width, height, layers, ratio)
    # A crop of a tiny image may be empty, and cannot be encoded.
    real = [(layer, box) for layer, box in published if box[0] < box[2] and box[1] < box[3]]
    assert crop_boxes(width, height, layers, ratio) == real


def test_layers_have_fewer_points() -> None:
    options = EverythingOptions(points_per_side=7, crop_n_layers=2, crop_n_points_downscale_factor=2)
    assert [len(grid) for grid in layer_grids(options)] == [49, 9, 1]


@given(sides, sides, st.integers(0, 2), st.integers(1, 9), st.integers(1, 30), st.integers(1, 30))
def test_chunks_have_all_points_in_order(
    width: int, height: int, layers: int, side: int, batch: int, most_rows: int
) -> None:
    options = EverythingOptions(points_per_side=side, crop_n_layers=layers, points_per_batch=batch)
    chunks = plan(options, width, height, most_rows)
    assert all(1 <= len(chunk.points) <= min(batch, most_rows) for chunk in chunks)
    expected = [
        (crop, *(share * (crop[2] - crop[0], crop[3] - crop[1]) + crop[:2]))
        for _, crop in crop_boxes(width, height, layers, options.crop_overlap_ratio)
        for share in published_point_grid(side)
    ]
    got = [(chunk.crop, *point) for chunk in chunks for point in chunk.points]
    assert [row[0] for row in got] == [row[0] for row in expected]
    np.testing.assert_allclose([row[1:] for row in got], [row[1:] for row in expected], atol=1e-9)


def test_a_region_spreads_the_grid_over_its_box() -> None:
    chunks = plan(EverythingOptions(points_per_side=2, region=(100, 50, 140, 60)), 640, 480)
    assert [chunk.crop for chunk in chunks] == [(0, 0, 640, 480)]
    np.testing.assert_allclose(chunks[0].points, [[110, 52.5], [130, 52.5], [110, 57.5], [130, 57.5]])


def test_crops_of_a_region_divide_it() -> None:
    options = EverythingOptions(points_per_side=1, region=(100.5, 50, 300, 250), crop_n_layers=1, crop_overlap_ratio=0)
    chunks = plan(options, 640, 480)
    assert [chunk.crop for chunk in chunks] == [
        (0, 0, 640, 480),
        (100, 50, 200, 150),
        (100, 150, 200, 250),
        (200, 50, 300, 150),
        (200, 150, 300, 250),
    ]
    for chunk in chunks[1:]:
        (x, y), (x0, y0, x1, y1) = chunk.points[0], chunk.crop
        assert (x, y) == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2))


def test_grids_of_ones_own() -> None:
    options = EverythingOptions(points_per_side=None, point_grids=(((0.0, 1.0),), ((0.5, 0.5),)), crop_n_layers=1)
    chunks = plan(options, 100, 80)
    assert chunks[0].points.tolist() == [[0, 80]]
    assert len(chunks) == 5
