"""The page cleans masks as the server does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.unit.node import run_node
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.rle import BoolArray, from_rle, rle

SCRIPT = Path(__file__).resolve().parents[1] / "web" / "cleaning.mjs"


def speckled(random: np.random.Generator, height: int, width: int) -> BoolArray:
    """A disc with noise over it: holes and islands of many sizes, at the border too."""
    rows, columns = np.mgrid[:height, :width]
    inside = np.hypot(rows - height / 2, columns - width / 2) < random.uniform(0.2, 0.7) * max(height, width)
    return inside ^ (random.random((height, width)) < random.uniform(0, 0.5))


def test_page_and_server_clean_alike(node: str) -> None:
    random = np.random.default_rng(21)
    shapes = [(1, 1), (1, 9), (8, 1), (3, 3), (17, 40), (64, 48), (90, 200)]
    masks = [speckled(random, *shape) for shape in shapes for _ in range(20)]
    masks += [np.zeros((5, 6), np.bool_), np.ones((5, 6), np.bool_), np.indices((9, 8)).sum(axis=0) % 2 == 0]
    sizes = [Cleaning(*random.integers(0, 60, 2).tolist()) for _ in masks]
    given = [{"mask": rle(mask), **size.as_json()} for mask, size in zip(masks, sizes, strict=True)]
    found = json.loads(run_node(node, SCRIPT, given=json.dumps(given)))
    for mask, size, text in zip(masks, sizes, found, strict=True):
        np.testing.assert_array_equal(from_rle(text), clean_mask(mask, size))
    assert sum(text != one["mask"] for text, one in zip(found, given, strict=True)) > len(masks) / 2
