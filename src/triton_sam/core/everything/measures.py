"""Area, box and stability of masks at the original size, from low-resolution logits, without making the pixels.

The numbers are those of the resized logits except for rounding: see :mod:`~triton_sam.core.everything.upsampling`. The
cost grows with a mask's outline and hardly with the image's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.upsampling import Axis, axes
from triton_sam.core.geometry import Frame
from triton_sam.core.rle import BoolArray

Logits = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
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


def measure(
    logits: Logits, frame: Frame, threshold: float, offset: float, least_stability: float = 0.0
) -> Measures | None:
    """[h,w] logits of the model's square -> the mask's numbers; None if its stability is less than wanted."""
    vertical, horizontal = axes(frame, *logits.shape)
    is_low = logits > np.float32(threshold - offset)
    rows, columns = _extent(is_low.any(axis=1)), _extent(is_low.any(axis=0))
    if rows is None or columns is None:
        return None if least_stability > 0 else Measures(0, (0, 0, 0, 0), 0.0, (slice(0, 0), slice(0, 0)))
    # Cells reach back: cell k has the logits k to k + taps - 1.
    top, left = max(rows[0] - vertical.taps + 1, 0), max(columns[0] - horizontal.taps + 1, 0)
    support = slice(top, rows[1] + vertical.taps), slice(left, columns[1] + horizontal.taps)
    block = _Block(logits[support], vertical, horizontal, (top, left))
    low, high = block.level(threshold - offset), block.level(threshold + offset)
    # Most masks that are not stable are far from it, and known without their outlines: no more pixels can be above the
    # upper threshold than touched cells have, and no fewer above the lower one than full cells have.
    if block.weight(high.is_touched) < least_stability * block.weight(low.is_full):
        return None
    either = block.count(low)
    stability = block.count(high) / either if either else 0.0
    if stability < least_stability:
        return None
    area, box = block.extent(block.level(threshold))
    return Measures(area, box, stability, support)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Cells of a block at one threshold, [rows,columns]: some of their logits are above it, or all."""

    threshold: np.float32
    is_touched: BoolArray
    is_full: BoolArray


class _Block:
    """Part of the logits, and the pixels that its cells have."""

    def __init__(self, logits: Logits, vertical: Axis, horizontal: Axis, origin: tuple[int, int]) -> None:
        self._logits = np.ascontiguousarray(logits)
        self._vertical, self._horizontal = vertical, horizontal
        self._top, self._left = origin
        rows, columns = logits.shape[0] - vertical.taps + 1, logits.shape[1] - horizontal.taps + 1
        self._down = vertical.counts[self._top : self._top + rows]
        self._across = horizontal.counts[self._left : self._left + columns]

    def level(self, threshold: float) -> _Level:
        limit = np.float32(threshold)
        is_above = self._logits > limit
        down, across = self._vertical.taps, self._horizontal.taps
        return _Level(
            limit,
            _windows(is_above, down, across, np.logical_or),
            _windows(is_above, down, across, np.logical_and),
        )

    def weight(self, cells: BoolArray) -> int:
        """Pixels of some cells."""
        # Sums of one row stay exact in float32. Not ``@``: BLAS would wake threads, which take cores from the decoder.
        in_rows = np.einsum("rc,c->r", cells.astype(np.float32), self._across)
        return int((in_rows * self._down).sum(dtype=np.float64))

    def count(self, level: _Level) -> int:
        """Pixels above the level's threshold."""
        outline = (np.count_nonzero(values > level.threshold) for values, _, _ in self._outline(level))
        return self.weight(level.is_full) + sum(outline)

    def extent(self, level: _Level) -> tuple[int, tuple[int, int, int, int]]:
        """(:meth:`count`, the box of these pixels)."""
        across, down = _Span(), _Span()
        area = self.weight(level.is_full)
        if area:
            has_pixels = (self._down > 0)[:, None] & (self._across > 0)
            is_full = level.is_full & has_pixels
            across.add_cells(is_full.any(axis=0), self._horizontal.first[self._left :])
            down.add_cells(is_full.any(axis=1), self._vertical.first[self._top :])
        for values, row, column in self._outline(level):
            is_object = values > level.threshold
            area += np.count_nonzero(is_object)
            across.add_pixels(is_object.any(axis=0), self._horizontal.first[column + self._left])
            down.add_pixels(is_object.any(axis=1), self._vertical.first[row + self._top])
        return area, (across.first, down.first, across.last, down.last) if area else (0, 0, 0, 0)

    def _outline(self, level: _Level) -> Iterator[tuple[Logits, Indices, Indices]]:
        """Cells on the level's outline, in parts: ([n,m,C] their pixels, NaN where one has fewer, [C] row, [C] column).

        C is the last axis, because numpy is slow with short ones.
        """
        row, column = np.divmod(np.flatnonzero(level.is_touched & ~level.is_full), level.is_full.shape[1])
        size = max(1, _AT_A_TIME // (self._vertical.weights.shape[1] * self._horizontal.weights.shape[1]))
        for start in range(0, len(row), size):
            part = slice(start, start + size)
            yield self._pixels(row[part], column[part]), row[part], column[part]

    def _pixels(self, row: Indices, column: Indices) -> Logits:
        down = _weights(self._vertical, row + self._top)
        across = _weights(self._horizontal, column + self._left)
        pitch = self._logits.shape[1]
        flat, corner = self._logits.ravel(), row * pitch + column
        values: Logits | None = None
        for right in range(self._horizontal.taps):
            mixed = flat[corner + right] * down[0]
            for below in range(1, self._vertical.taps):
                mixed += flat[corner + (below * pitch + right)] * down[below]
            part = mixed[:, None] * across[right]
            values = part if values is None else np.add(values, part, out=values)
        assert values is not None  # there is at least one tap
        return values


class _Span:
    """The first and the last pixel of an axis so far."""

    def __init__(self) -> None:
        self.first, self.last = 2**62, -1

    def add_cells(self, is_used: BoolArray, first: Indices) -> None:
        """[cells] and the first pixel of each, and of the one after the last."""
        used = _extent(is_used)
        if used is not None:
            self._add(int(first[used[0]]), int(first[used[1] + 1]) - 1)

    def add_pixels(self, is_used: BoolArray, first: Indices) -> None:
        """[n,C] pixels of cells, and [C] the first one of each."""
        step, cell = np.divmod(np.flatnonzero(is_used), is_used.shape[1])
        if len(cell):
            pixels = first[cell] + step
            self._add(int(pixels.min()), int(pixels.max()))

    def _add(self, first: int, last: int) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)


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


def _weights(axis: Axis, cell: Indices) -> Logits:
    """[C] cells -> [taps,n,C]."""
    most = int(axis.counts[cell].max())
    return np.take(axis.weights[:, :most], cell, axis=2)
