from __future__ import annotations

import numpy as np
from PIL import Image

from triton_sam.core.label_overlay import label_colours, label_overlay

GREY = (200, 200, 200)


def drawn(labels: np.ndarray) -> np.ndarray:
    picture = Image.new("RGB", labels.shape[::-1], GREY)
    return np.asarray(label_overlay(picture, labels))


def test_the_background_stays() -> None:
    assert (drawn(np.zeros((4, 6), np.uint8)) == GREY).all()


def test_labels_are_tinted_and_have_borders() -> None:
    labels = np.zeros((20, 30), np.uint16)
    labels[2:18, 3:15] = 1
    labels[2:18, 15:27] = 300
    found, colours = drawn(labels), label_colours(300)
    assert (found[labels == 0] == GREY).all()
    for label, inside in ((1, (10, 8)), (300, (10, 20))):
        tint = np.array(GREY) * 0.55 + colours[label] * 0.45
        assert np.abs(found[inside] - tint).max() <= 1
        rows, columns = np.nonzero(labels == label)
        for row in (rows.min(), rows.max()):
            assert (found[row, columns.min() : columns.max() + 1] == colours[label]).all()
    assert (found[10, 14] == colours[1]).all()  # where two labels meet, each has its own border
    assert (found[10, 15] == colours[300]).all()


def test_borders_are_wider_in_a_large_image() -> None:
    labels = np.zeros((1500, 40), np.uint8)
    labels[:, 20:] = 1
    found, colour = drawn(labels), label_colours(1)[1]
    is_border = (found[700] == colour).all(axis=1)
    assert np.flatnonzero(is_border).tolist() == [20, 21, 22]


def test_neighbouring_labels_differ() -> None:
    colours = label_colours(50).astype(int)
    assert colours.shape == (51, 3)
    assert len({tuple(row) for row in colours.tolist()}) == 51
    assert (np.abs(np.diff(colours[1:], axis=0)).max(axis=1) > 60).all()
