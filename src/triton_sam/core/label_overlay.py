"""Draws a label image over a picture."""

from __future__ import annotations

import colorsys

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from triton_sam.core.everything.labels import Labels

#: Share of the golden ratio's step around the circle of hues: neighbouring labels differ most.
_HUE_STEP = 0.61803398875
_TINT = 0.45


def label_colours(count: int) -> npt.NDArray[np.uint8]:
    """[count + 1, 3] RGB by label; 0, the background, is black."""
    rows = [(0.0, 0.0, 0.0)]
    rows += [colorsys.hsv_to_rgb(number * _HUE_STEP % 1, 0.75, 1) for number in range(count)]
    return np.array([[round(255 * part) for part in row] for row in rows], np.uint8)


def label_overlay(picture: Image.Image, labels: Labels) -> Image.Image:
    """The picture with each label tinted in its own colour, and borders drawn around it.

    Args:
        picture: the original; labels: [H,W] of its size, 0 for background.
    """
    colours = label_colours(int(labels.max(initial=0)))
    result = np.array(picture.convert("RGB"))
    shown = labels > 0  # only these pixels are computed: objects of a video are small
    tinted = result[shown] * np.float32(1 - _TINT) + colours[labels[shown]] * np.float32(_TINT)
    result[shown] = tinted.round().astype(np.uint8)
    borders = _borders(labels)
    result[borders] = colours[labels[borders]]
    return Image.fromarray(result)


def _borders(labels: Labels) -> npt.NDArray[np.bool_]:
    """[H,W]: pixels of a label that lie at another one, or at the background; wider in a large image."""
    edges = np.zeros(labels.shape, np.bool_)
    for axis in (0, 1):
        first, second = (np.swapaxes(labels, 0, axis)[part] for part in (slice(None, -1), slice(1, None)))
        changes = first != second
        along = np.swapaxes(edges, 0, axis)
        along[:-1] |= changes
        along[1:] |= changes
    wide = 2 * round(max(labels.shape) / 1000) + 1
    if wide > 1:
        lines = Image.fromarray(edges.view(np.uint8) * np.uint8(255))
        edges = np.asarray(lines.filter(ImageFilter.MaxFilter(wide))) > 0
    borders: npt.NDArray[np.bool_] = edges & (labels > 0)
    return borders
