"""How a pixel of the image is made of low-resolution logits, without making the pixels.

Resizing to the original size is linear and works along each axis alone: a pixel is a weighted mean of two neighbouring
logits along an axis, or of up to three where the model's square is padded (logits are first resized to the square, then
cropped, then resized again). Pixels that take the same logits form a cell. A cell whose logits are all above a
threshold is all object, because no mean is below its smallest part; one with none above it is all background. Only the
cells along the outline have to be looked into.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from triton_sam.core.geometry import Frame, ResizePolicy

Weights = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One axis of the resize from ``n`` logits to the pixels of an image.

    Attributes:
        taps: logits that a pixel is made of: cell ``k`` takes the logits ``k`` to ``k + taps - 1``.
        first: [cells + 1] the first pixel of each cell; the last entry is the number of pixels.
        counts: [cells] pixels of each cell, float32.
        weights: [taps,n,cells] float32, of each cell's pixels; NaN where a cell has fewer than n.
    """

    taps: int
    first: Indices
    counts: Weights
    weights: Weights


@lru_cache(maxsize=64)
def axes(frame: Frame, rows: int, columns: int) -> tuple[Axis, Axis]:
    """(vertical, horizontal) of [rows,columns] logits of the model's square and the frame's image."""
    if frame.policy is not ResizePolicy.PAD:
        return _axis(_bilinear(rows, frame.height)), _axis(_bilinear(columns, frame.width))
    across, down = frame.resized
    vertical = _bilinear(down, frame.height) @ _bilinear(rows, frame.side)[:down]
    horizontal = _bilinear(across, frame.width) @ _bilinear(columns, frame.side)[:across]
    return _axis(vertical), _axis(horizontal)


def _bilinear(source: int, target: int) -> npt.NDArray[np.float64]:
    """[target,source] weights of a bilinear resize with pixel centres at 0.5 and the border repeated."""
    places = np.clip((np.arange(target) + 0.5) * (source / target) - 0.5, 0, source - 1)
    lower = np.floor(places).astype(np.intp)
    share = places - lower
    matrix = np.zeros((target, source))
    pixel = np.arange(target)
    matrix[pixel, lower] = 1 - share
    matrix[pixel, np.minimum(lower + 1, source - 1)] += share
    return matrix


def _axis(matrix: npt.NDArray[np.float64]) -> Axis:
    """Keeps only the weights that are not zero."""
    pixels, source = matrix.shape
    is_used = matrix != 0
    begin = is_used.argmax(axis=1)
    end = source - is_used[:, ::-1].argmax(axis=1)
    taps = min(int((end - begin).max()), source)
    begin = np.minimum(begin, source - taps)
    weights = np.take_along_axis(matrix, begin[:, None] + np.arange(taps), axis=1)
    first = np.searchsorted(begin, np.arange(source - taps + 2))
    counts = np.diff(first)
    steps = np.arange(int(counts.max()))[:, None]
    table = np.full((taps, len(steps), len(counts)), np.nan, np.float32)
    table[:, steps < counts] = weights[np.minimum(first[:-1] + steps, pixels - 1)][steps < counts].T
    return Axis(taps, first, counts.astype(np.float32), table)
