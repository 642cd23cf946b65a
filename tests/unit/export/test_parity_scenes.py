from __future__ import annotations

import sys

import numpy as np
import pytest

from triton_sam.export.parity_scenes import DRAWING, PHOTOGRAPH, drawing, photograph, prompts, scenes

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("side", [112, 256])
def test_a_drawing(side: int) -> None:
    image = drawing(side, seed=5).pixels
    assert image.shape == (1, 3, side, side)
    assert image.dtype == np.float32
    assert 0 <= image.min() < image.max() <= 1
    assert np.array_equal(image, drawing(side, seed=5).pixels)
    assert not np.array_equal(image, drawing(side, seed=6).pixels)


@pytest.mark.parametrize("seed", range(20))
def test_a_drawing_has_objects_where_it_says(seed: int) -> None:
    """Inside its box and around its middle an object has a colour that the border of its box does not have."""
    scene = drawing(256, seed)
    left, top, right, bottom = (np.array(scene.box) * 256).astype(int)
    x, y = (np.array(scene.points[0]) * 256).astype(int)
    assert left < x < right
    assert top < y < bottom
    for point in (*scene.points, scene.outside):
        assert 0 < min(point) < max(point) < 1
    pixels = scene.pixels[0]
    inside = pixels[:, y - 4 : y + 5, x - 4 : x + 5].mean(axis=(1, 2))
    corners = [pixels[:, row, column] for row in (top, bottom - 1) for column in (left, right - 1)]
    assert np.abs(inside - np.mean(corners, axis=0)).max() > 0.02


def test_the_photograph() -> None:
    picture = photograph(64)
    assert picture is not None
    assert picture.pixels.shape == (1, 3, 64, 64)
    assert picture.pixels.dtype == np.float32
    assert 0 <= picture.pixels.min() < 0.1 < 0.8 < picture.pixels.max() <= 1
    assert [scene.name for scene in scenes(64, seed=0)] == [DRAWING, PHOTOGRAPH]


def test_without_scikit_image_only_the_drawing_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert [scene.name for scene in scenes(64, seed=0)] == [DRAWING]


def test_a_seed_moves_the_prompts_of_a_drawing_a_little() -> None:
    scene = drawing(256, seed=3)
    first, again, other = (list(prompts(scene, 256, seed)) for seed in (1, 1, 2))
    for one, same, moved in zip(first, again, other, strict=True):
        assert one.kind == same.kind == moved.kind
        assert one.points.equal(same.points)
        assert not one.points.numel() or 0 < (one.points - moved.points).abs().max().item() < 6
        assert one.boxes is None or not one.boxes.equal(moved.boxes)


def test_the_prompts_of_the_photograph_stay() -> None:
    scene = photograph(64)
    assert scene is not None
    for one, other in zip(prompts(scene, 64, seed=1), prompts(scene, 64, seed=2), strict=True):
        assert one.points.equal(other.points)
        assert one.boxes is None or one.boxes.equal(other.boxes)
