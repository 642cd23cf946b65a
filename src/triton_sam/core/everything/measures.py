"""Area, box and stability of masks at the original size, from low-resolution logits, without making the pixels.

The numbers are those of the resized logits except for rounding: see :mod:`~triton_sam.core.everything.upsampling`. The
cost grows with a mask's outline and hardly with the image's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.upsampling import Axis, axes
from triton_sam.core.geometry import Frame
from triton_sam.core.rle import BoolArray

Logits = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
#: Pixels that are computed at a time: an outline of a large image has millions.
_AT_A_TIME = 2**18


@dataclass(frozen=True, slots=True)
class Measures:
    """Numbers of one mask, in pixels of the frame's image.

    Attributes:
        area: pixels above the threshold.
        box: first and last column and row, x0, y0, x1, y1, inclusive; all zero for an empty mask.
        stability: pixels above threshold + offset / pixels above threshold - offset; 0 if there are none.
        support: (rows, columns) of the logits outside of which no pixel is above the threshold.
    """

    area: int
    box: tuple[int, int, int, int]
    stability: float
    support: tuple[slice, slice]


def measure(logits: Logits, frame: Frame, threshold: float, offset: float) -> Measures:
    """[h,w] logits of the model's square -> the mask's numbers."""
    vertical, horizontal = axes(frame, *logits.shape)
    low, high = np.float32(threshold - offset), np.float32(threshold + offset)
    is_low = logits > low
    rows, columns = _extent(is_low.any(axis=1)), _extent(is_low.any(axis=0))
    if rows is None or columns is None:
        return Measures(0, (0, 0, 0, 0), 0.0, (slice(0, 0), slice(0, 0)))
    # Cells reach back: cell k has the logits k to k + taps - 1.
    top, left = max(rows[0] - vertical.taps + 1, 0), max(columns[0] - horizontal.taps + 1, 0)
    support = slice(top, rows[1] + vertical.taps), slice(left, columns[1] + horizontal.taps)
    block = logits[support]
    some_low = _windows(is_low[support], vertical.taps, horizontal.taps, np.logical_or)
    all_high = _windows(block > high, vertical.taps, horizontal.taps, np.logical_and)

    extremes = _Extremes()
    down, across = vertical.counts[top:][: all_high.shape[0]], horizontal.counts[left:][: all_high.shape[1]]
    # Sums of one row stay exact in float32. Not ``@``: BLAS would wake threads, which the decoder's take turns with.
    inside = int((np.einsum("rc,c->r", all_high.astype(np.float32), across) * down).sum(dtype=np.float64))
    if inside:
        is_full = all_high if down.all() and across.all() else all_high & (down > 0)[:, None] & (across > 0)
        extremes.add_cells(is_full, vertical.first[top:], horizontal.first[left:])
    counts = np.array([inside, inside, inside])
    row, column = np.divmod(np.flatnonzero(some_low & ~all_high), some_low.shape[1])
    size = max(1, _AT_A_TIME // (vertical.weights.shape[1] * horizontal.weights.shape[1]))
    for start in range(0, len(row), size):
        part = slice(start, start + size)
        values = _pixels(block, (row[part], column[part]), (vertical, horizontal), (top, left))
        is_object = values > np.float32(threshold)
        counts += [np.count_nonzero(values > low), np.count_nonzero(is_object), np.count_nonzero(values > high)]
        extremes.add_pixels(is_object, vertical.first[row[part] + top], horizontal.first[column[part] + left])
    stability = counts[2] / counts[0] if counts[0] else 0.0
    return Measures(int(counts[1]), extremes.box(), float(stability), support)


def _extent(is_used: BoolArray) -> tuple[int, int] | None:
    """The first and the last true index."""
    first = int(is_used.argmax())
    return (first, len(is_used) - 1 - int(is_used[::-1].argmax())) if is_used[first] else None


def _windows(values: BoolArray, down: int, across: int, join: np.ufunc) -> BoolArray:
    """[h,w] -> [h - down + 1, w - across + 1]: joined over windows of ``down`` x ``across``."""
    height, width = values.shape[0] - down + 1, values.shape[1] - across + 1
    tall = values[:height]
    for step in range(1, down):
        tall = join(tall, values[step : step + height])
    joined = tall[:, :width]
    for step in range(1, across):
        joined = join(joined, tall[:, step : step + width])
    return np.asarray(joined)


def _pixels(
    block: Logits,
    cells: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
    both: tuple[Axis, Axis],
    origin: tuple[int, int],
) -> Logits:
    """Cells of a block -> [n,m,C] their pixels, NaN where one has fewer. C is last: numpy is slow with short axes."""
    (row, column), (vertical, horizontal) = cells, both
    down, across = _weights(vertical, row + origin[0]), _weights(horizontal, column + origin[1])
    pitch = block.shape[1]
    flat, corner = block.ravel(), row * pitch + column
    values: Logits | None = None
    for right in range(horizontal.taps):
        mixed = flat[corner + right] * down[0]
        for below in range(1, vertical.taps):
            mixed += flat[corner + (below * pitch + right)] * down[below]
        part = mixed[:, None] * across[right]
        values = part if values is None else np.add(values, part, out=values)
    assert values is not None  # there is at least one tap
    return values


def _weights(axis: Axis, cell: npt.NDArray[np.intp]) -> Logits:
    """[C] cells -> [taps,n,C]."""
    most = int(axis.counts[cell].max())
    return np.take(axis.weights[:, :most], cell, axis=2)


class _Extremes:
    """The first and the last column and row so far."""

    def __init__(self) -> None:
        self._x: list[int] = []
        self._y: list[int] = []

    def add_cells(
        self, is_full: BoolArray, first_row: npt.NDArray[np.intp], first_column: npt.NDArray[np.intp]
    ) -> None:
        """[h,w] cells that are all object, none without a pixel."""
        for places, is_used, first in (
            (self._x, is_full.any(axis=0), first_column),
            (self._y, is_full.any(axis=1), first_row),
        ):
            used = _extent(is_used)
            if used is not None:
                places += [int(first[used[0]]), int(first[used[1] + 1]) - 1]

    def add_pixels(
        self, is_object: BoolArray, first_row: npt.NDArray[np.intp], first_column: npt.NDArray[np.intp]
    ) -> None:
        """[n,m,C] pixels of cells, and [C] the first row and column of each."""
        for places, is_used, first in (
            (self._x, is_object.any(axis=0), first_column),
            (self._y, is_object.any(axis=1), first_row),
        ):
            step, cell = np.divmod(np.flatnonzero(is_used), is_used.shape[1])
            if len(cell):
                pixels = first[cell] + step
                places += [int(pixels.min()), int(pixels.max())]

    def box(self) -> tuple[int, int, int, int]:
        if not self._x:
            return 0, 0, 0, 0
        return min(self._x), min(self._y), max(self._x), max(self._y)
