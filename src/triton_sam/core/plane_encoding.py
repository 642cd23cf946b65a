"""The samples of pages as bytes for a browser: 8 or 16 bits, unsigned, little-endian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_TOP = 65535


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPlanes:
    """Pages of one shape: file value = low + sample / 65535 * (high - low)."""

    pages: list[npt.NDArray[Any]]
    """[C,H,W] each, uint8 or little-endian uint16."""
    low: float
    high: float
    not_finite: int
    """Samples that were NaN or infinite and are 0 now."""

    @property
    def dtype(self) -> str:
        return "uint8" if self.pages[0].dtype == np.uint8 else "uint16"


def encode_planes(pages: Sequence[npt.NDArray[Any]]) -> EncodedPlanes:
    """Pages [C,H,W] of one dtype. Unsigned integers up to 16 bits stay as they are; others are mapped linearly."""
    dtype = pages[0].dtype
    if dtype == np.uint8:
        return EncodedPlanes([np.ascontiguousarray(page) for page in pages], 0, 255, 0)
    if dtype == np.uint16:
        return EncodedPlanes([_little(page) for page in pages], 0, _TOP, 0)
    not_finite = 0
    if dtype.kind == "f":
        not_finite = sum(int(np.count_nonzero(~np.isfinite(page))) for page in pages)
    if not_finite:
        pages = _without_missing(pages)
    low, high = min(float(page.min()) for page in pages), max(float(page.max()) for page in pages)
    if dtype.kind != "f" and low >= 0 and high <= _TOP:
        return EncodedPlanes([_little(page) for page in pages], 0, _TOP, 0)
    scale = _TOP / (high - low) if high > low else 0.0
    mapped = [_little((page.astype(np.float64) - low) * scale + 0.5) for page in pages]
    return EncodedPlanes(mapped, low, high, not_finite)


def _without_missing(pages: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """NaN and infinite become the lowest value, so that they are sample 0 and do not widen the range."""
    lowest = min((float(page.min(initial=np.inf, where=np.isfinite(page))) for page in pages), default=np.inf)
    filling = lowest if np.isfinite(lowest) else 0.0
    return [np.where(np.isfinite(page), page, page.dtype.type(filling)) for page in pages]


def _little(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return np.ascontiguousarray(values.astype("<u2"))
