"""Writes prompts into the fixed slots of the decoder's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triton_sam.engines.base import FloatArray, Row
from triton_sam.engines.inputs import listed_points
from triton_sam.engines.torch.decoder import ABSENT, NOT_A_POINT

#: x and y in model pixels, and a label.
Point = tuple[float, float, float]
_NOT_A_POINT: Point = (0.0, 0.0, NOT_A_POINT)
_ABSENT = np.array([0, 0, ABSENT], np.float32)


def row_points(row: Row, *, always_padded: bool) -> list[Point]:
    """The points of one row, with the "not a point" tokens that the reference adds.

    Args:
        always_padded: SAM 2 and 3 always add one, and a second if there are no points at all; SAM 1 adds one to points
            without a box.
    """
    points = listed_points(row.prompt, row.embedding.frame)
    if always_padded:
        points += [_NOT_A_POINT] * (1 if points else 2)
    elif points and row.prompt.box is None:
        points.append(_NOT_A_POINT)
    return points


def fill_slots(slots: FloatArray, points: Sequence[Sequence[Point]]) -> None:
    """Writes the points of some rows into [R,S,3]; the remaining slots are absent."""
    slots[:] = _ABSENT
    for slot, row in zip(slots, points, strict=False):
        if row:  # numpy does not accept an empty list here
            slot[: len(row)] = row
