"""Samples of any depth to the 8 bits that a model is given: one rule for files, arrays and chosen channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput

Bytes = npt.NDArray[np.uint8]
Window = tuple[float, float]
#: Fractions of white: darker floats would lose their detail in 8 bits, so their range is stretched.
_DARKEST_FRACTION = 1 / 16
_ROWS = 2**22


def eight_bits(values: npt.NDArray[Any], *, bits: int | None = None) -> Bytes:
    """Samples of any shape -> uint8 of the same shape.

    - ``uint8`` and boolean: as they are; less than 8 ``bits``: their largest value is white.
    - Other integers from 0 to 65535: cameras store 10, 12 or 14 bits in 16, so white is the maximum of the smallest
      depth, from 8 bits on, that holds the brightest pixel.
    - Floats from 0 to 1: 1 is white; floats from 0 to 255: 255 is white.
    - Everything else (negative or larger numbers, floats below 1/16): the range is stretched.
    """
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint8:
        return values if bits is None or bits >= 8 else windowed(values, (0, 2**bits - 1))
    low, high = value_range(values)
    return windowed(values, white_of(values.dtype, low, high))


def value_range(values: npt.NDArray[Any]) -> Window:
    """(lowest, highest); InvalidInput if there are values that are not finite."""
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InvalidInput(
            "the image has pixels that are not finite (NaN or infinite): replace them, "
            "for example with numpy.nan_to_num(image, posinf=0, neginf=0)"
        )
    return low, high


def white_of(dtype: np.dtype[Any], low: float, high: float) -> Window:
    """(black, white) for samples of this range."""
    if low < 0:
        return low, high
    if dtype.kind == "f":
        if _DARKEST_FRACTION <= high <= 1 or high == 0:
            return 0.0, 1.0
        return (0.0, 255.0) if 1 < high <= 255 else (low, high)
    return (0.0, float(2 ** depth(high) - 1)) if high < 2**16 else (low, high)


def depth(brightest: float) -> int:
    """The smallest number of bits, from 8 on, that holds the brightest integer."""
    return max(8, int(brightest).bit_length())


def windowed(values: npt.NDArray[Any], window: Window) -> Bytes:
    """Maps low..high to 0..255, rounded; what lies outside becomes black or white, NaN and a single value black."""
    low, high = window
    spread = high - low
    if spread <= 0:
        return np.zeros(values.shape, np.uint8)
    if values.dtype in (np.uint8, np.uint16):
        table = np.arange(int(np.iinfo(values.dtype).max) + 1, dtype=np.float64)
        seen: Bytes = _mapped(table, low, spread)[values]
        return seen
    flat = values.reshape(-1)
    out = np.empty(flat.shape, np.uint8)
    for start in range(0, flat.size, _ROWS):  # in parts, because the floats in between are large
        out[start : start + _ROWS] = _mapped(flat[start : start + _ROWS].astype(np.float64), low, spread)
    return out.reshape(values.shape)


def _mapped(values: npt.NDArray[np.float64], low: float, spread: float) -> Bytes:
    return np.nan_to_num(np.clip((values - low) * (255.0 / spread) + 0.5, 0, 255.5)).astype(np.uint8)
