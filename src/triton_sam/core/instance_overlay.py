"""Draws instances over a picture: each tinted in its own colour, with its number and its score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from triton_sam.core.everything.labels import Labels, label_type
from triton_sam.core.label_overlay import label_overlay
from triton_sam.core.labelled_overlay import draw_label, label_font
from triton_sam.core.rle import BoolArray

_YES, _NO, _GROUND = (46, 204, 64), (255, 65, 54), (0, 0, 0)
_SMALLEST_TEXT, _TEXT_SHARE = 11, 1 / 64


def instance_labels(masks: Sequence[BoolArray] | BoolArray, width: int, height: int) -> Labels:
    """[K,H,W] bool -> [H,W]: 0 for background, ``i + 1`` for mask ``i``; where masks overlap, the smaller is on top."""
    labels: Labels = np.zeros((height, width), label_type(len(masks)))
    areas = [np.count_nonzero(mask) for mask in masks]
    for index in np.argsort(areas, kind="stable")[::-1].tolist():  # equal ones from the last on
        labels[masks[index]] = index + 1
    return labels


def instance_overlay(
    picture: Image.Image,
    masks: Sequence[BoolArray] | BoolArray,
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    examples: Sequence[tuple[Sequence[float], int]] = (),
) -> Image.Image:
    """The picture with its instances, numbered from 1 on in their order.

    Args:
        picture: the original; masks: [K,H,W] bool of its size.
        boxes: [K,4] x0, y0, x1, y1 in original pixels, at which the numbers stand; scores: [K].
        examples: boxes that were given, likewise, with 1 or 0: drawn in green or red.
    """
    result = label_overlay(picture, instance_labels(masks, *picture.size))
    pen = ImageDraw.Draw(result)
    line = max(1, round(max(result.size) / 400))
    for corners, label in examples:
        pen.rectangle(list(corners), outline=_YES if label else _NO, width=line)
    font = label_font(max(_SMALLEST_TEXT, round(max(result.size) * _TEXT_SHARE)))
    places = np.asarray(boxes, np.float32).reshape(-1, 4)[:, :2].tolist()
    for number, (place, score) in enumerate(zip(places, np.asarray(scores).tolist(), strict=True), 1):
        draw_label(pen, result.size, f"{number}: {score:.2f}", place, _GROUND, font)
    return result
