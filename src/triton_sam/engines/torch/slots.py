"""Prompts -> the fixed slots of the decoder's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triton_sam.engines.base import FloatArray, Row
from triton_sam.engines.inputs import model_points
from triton_sam.engines.torch.decoder import ABSENT, NOT_A_POINT


def row_points(row: Row, *, always_padded: bool) -> FloatArray:
    """[P,3]: x and y in model pixels and a label, with the "not a point" tokens that the reference adds.

    Args:
        always_padded: SAM 2 and 3 always add one, and a second in the place of points that are missing altogether;
            SAM 1 adds one to points without a box.
    """
    coords, labels = model_points(row.prompt, row.embedding.frame)
    given = len(labels)
    padding = (1 if given else 2) if always_padded else int(given > 0 and row.prompt.box is None)
    points = np.zeros((len(labels) + padding, 3), np.float32)
    points[: len(labels), :2] = coords
    points[: len(labels), 2] = labels
    points[len(labels) :, 2] = NOT_A_POINT
    return points


def fill_slots(slots: FloatArray, points: Sequence[FloatArray]) -> None:
    """Writes the points of some rows into [R,S,3]; what is left of it is absent."""
    slots[:, :, :2] = 0
    slots[:, :, 2] = ABSENT
    for slot, row in zip(slots, points, strict=False):
        slot[: len(row)] = row
