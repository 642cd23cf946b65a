from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFont

from triton_sam.core.instance_overlay import instance_labels, instance_overlay

SIDE = 200


def square(x: int, y: int, side: int) -> np.ndarray:
    mask = np.zeros((SIDE, SIDE), np.bool_)
    mask[y : y + side, x : x + side] = True
    return mask


def test_labels_of_masks_that_overlap() -> None:
    masks = np.stack([square(10, 10, 20), square(0, 0, 100), square(10, 10, 20)])
    labels = instance_labels(masks, SIDE, SIDE)
    assert labels.dtype == np.uint8
    assert set(np.unique(labels)) == {0, 1, 2}
    assert (labels[10:30, 10:30] == 1).all(), "of equal ones the earlier"
    assert labels[0, 0] == labels[99, 99] == 2
    assert not instance_labels(np.zeros((0, 3, 5), np.bool_), 5, 3).any()
    assert instance_labels(np.zeros((300, 3, 5), np.bool_), 5, 3).dtype == np.uint16


def drawn(picture: Image.Image) -> np.ndarray:
    return np.any(np.asarray(picture) != 90, axis=2)


def test_each_instance_is_tinted_and_has_its_number_in_the_picture() -> None:
    picture = Image.new("RGB", (SIDE, SIDE), (90, 90, 90))
    masks = np.stack([square(100, 100, 40), square(0, 0, 30)])
    found = instance_overlay(picture, masks, [[100, 100, 140, 140], [-5, -5, 30, 30]], [0.93, 0.5])
    pixels = np.asarray(found)
    assert drawn(found)[105:135, 105:135].all()
    assert not (pixels[120, 120] == pixels[28, 28]).all(), "another colour"
    assert (pixels[85:100, 100:150] > 180).all(axis=2).any(), "white on black above the first"
    assert (pixels[0:15, 0:50] > 180).all(axis=2).any(), "and inside the picture for one in the corner"
    assert not drawn(found)[150:, 150:].any()
    assert picture.getpixel((105, 105)) == (90, 90, 90), "the picture itself stays"


def test_examples_and_nothing_found() -> None:
    picture = Image.new("RGB", (SIDE, SIDE), (90, 90, 90))
    none = np.zeros((0, SIDE, SIDE), np.bool_)
    assert not drawn(instance_overlay(picture, none, [], [])).any()
    found = instance_overlay(picture, none, [], [], [([20, 20, 60, 60], 1), ([100, 20, 140, 60], 0)])
    assert found.getpixel((20, 40)) == (46, 204, 64)
    assert found.getpixel((100, 40)) == (255, 65, 54)
    assert found.getpixel((40, 40)) == (90, 90, 90)


def test_an_older_pillow_has_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    new = ImageFont.load_default
    monkeypatch.setattr(ImageFont, "load_default", lambda: new(10))
    picture = Image.new("RGB", (SIDE, SIDE), (90, 90, 90))
    assert drawn(instance_overlay(picture, [square(50, 50, 10)], [[50, 50, 60, 60]], [0.5])).any()
