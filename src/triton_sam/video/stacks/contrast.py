"""One contrast for a whole stack, from a sample of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.deep_pixels import Bytes, Window, windowed

#: Of the sample, in percent: what the page's automatic window cuts off, and ImageJ's.
CUT = 0.35
#: Values that are read for the sample, and how many parts of the stack they come from.
_SAMPLE_VALUES, FEWEST_PARTS, MOST_PARTS = 2**22, 8, 64
_READ_VALUES = 2**25


@dataclass(frozen=True, slots=True)
class Contrast:
    """The values that become black and white.

    Attributes:
        note: a sentence about where they come from.
    """

    low: float
    high: float
    note: str

    @property
    def window(self) -> Window:
        return self.low, self.high

    def applied(self, values: npt.NDArray[Any]) -> Bytes:
        """Values of any shape -> uint8 of the same shape; NaN becomes black."""
        return windowed(values, self.window)


def parts_to_sample(part_values: int) -> int:
    """How many parts of this size are read for a sample."""
    return min(MOST_PARTS, max(FEWEST_PARTS, _READ_VALUES // max(1, part_values)))


def spread(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` of the indices below ``count``, evenly spread, with the first and the last."""
    return sorted({int(index) for index in np.linspace(0, count - 1, min(count, wanted)).round()})


def thinned(values: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
    """A part's share of the sample, one-dimensional."""
    flat = values.reshape(-1)
    step = -(-flat.size * parts // _SAMPLE_VALUES)
    return flat[:: step | 1].copy()  # odd: a step of a row's length would see one column


def given_contrast(window: Window) -> Contrast:
    """As the user says."""
    return Contrast(*window, f"contrast: {_number(window[0])} to {_number(window[1])} as given")


def contrast_of(sample: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any]) -> Contrast:
    """By percentiles, or by all values where these would leave nothing.

    Args:
        sample: parts of the stack, of any shape.
    """
    values = np.concatenate([part.reshape(-1) for part in sample])
    depth = f" of {8 * dtype.itemsize} bits" if dtype.kind in "ui" else ""
    if dtype.kind == "f":
        values = values[np.isfinite(values)]
        if not values.size:
            return Contrast(0.0, 1.0, "contrast: no pixel that was looked at has a number, so frames may be black")
    low, high = (float(each) for each in np.percentile(values, (CUT, 100 - CUT), method="inverted_cdf"))
    if low < high:
        note = f"contrast: {_number(low)} to {_number(high)}{depth} (percentiles {CUT} and {100 - CUT})"
        return Contrast(low, high, note)
    low, high = float(values.min()), float(values.max())
    if low < high:
        return Contrast(low, high, f"contrast: {_number(low)} to {_number(high)}{depth} (all values: few differ)")
    high = low + max(1.0, abs(low) * 2**-20)
    return Contrast(low, high, f"contrast: every pixel that was looked at is {_number(low)}, so frames may be black")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"
