"""The box of a COCO annotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triton_sam.core.json_values import is_finite_number, short
from triton_sam.core.rle import runs
from triton_sam.errors import InvalidInput

Box = tuple[float, float, float, float]


def box_of(entry: Mapping[str, Any], where: str, width: int | None, height: int | None) -> Box | None:
    """x0, y0, x1, y1, clipped to the image; None if the annotation has neither a box nor a segmentation.

    Args:
        where: names the annotation in messages.
        width, height: of the image; None if they are not known, and the server checks.
    """
    given = entry.get("bbox")
    if given is None or given == []:
        box = _box_of_segmentation(entry.get("segmentation"), where)
        if box is None:
            return None
    else:
        box = _box(given, where)
    x0, y0, x1, y1 = max(0.0, box[0]), max(0.0, box[1]), box[2], box[3]
    x1, y1 = x1 if width is None else min(x1, width), y1 if height is None else min(y1, height)
    if x0 >= x1 or y0 >= y1:
        size = f" of {width} x {height} pixels" if width and height else ""
        corners = ", ".join(f"{value:g}" for value in box)
        raise InvalidInput(f"{where}: its box with the corners [{corners}] lies outside the image{size}: correct it")
    return x0, y0, float(x1), float(y1)


def _box(given: Any, where: str) -> Box:
    if not isinstance(given, list) or len(given) != 4 or not all(is_finite_number(value) for value in given):
        raise InvalidInput(f"{where}: its bbox {short(given)} is not [x, y, width, height], four finite numbers")
    x, y, width, height = map(float, given)
    if width <= 0 or height <= 0:
        raise InvalidInput(f"{where}: its bbox {short(given)} has no area: its last two numbers are width and height")
    return x, y, x + width, y + height


def _box_of_segmentation(given: Any, where: str) -> Box | None:
    """Of polygons or an RLE; None for nothing."""
    if not given:
        return None
    try:
        box = _of_runs(given) if isinstance(given, Mapping) else _of_polygons(given)
    except (InvalidInput, ValueError, TypeError, KeyError, OverflowError):
        raise InvalidInput(
            f"{where} has no bbox, and its segmentation is neither polygons nor an RLE: add bbox [x, y, width, height]"
        ) from None
    if box is not None and (box[0] >= box[2] or box[1] >= box[3]):
        raise InvalidInput(f"{where} has no bbox, and its segmentation has no area: add bbox [x, y, width, height]")
    return box


def _of_polygons(given: Sequence[Sequence[float]]) -> Box | None:
    parts = [np.asarray(part, np.float64) for part in given if len(part)]
    if not parts:
        return None
    if any(part.ndim != 1 or len(part) % 2 or not np.isfinite(part).all() for part in parts):
        raise ValueError("no polygon")
    points = np.concatenate(parts)
    xs, ys = points[::2], points[1::2]
    return float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max())


def _of_runs(given: Mapping[str, Any]) -> Box | None:
    height = int(given["size"][0])
    lengths = runs(given)
    ends = np.cumsum(lengths)
    is_object = (np.arange(len(lengths)) % 2 == 1) & (lengths > 0)
    if not is_object.any():
        return None
    first, last = (ends - lengths)[is_object], ends[is_object] - 1
    left, right = first // height, last // height
    if (left != right).any():  # goes on at the top of the next column
        top, bottom = 0, height
    else:
        top, bottom = int((first % height).min()), int((last % height).max()) + 1
    return float(left.min()), float(top), float(right.max() + 1), float(bottom)
