"""Cleaning of masks: small holes are filled and small islands removed, at the image's original size.

A hole is a region of background that the object encloses: it does not reach the image's border, and its pixels are
connected by edges (4 neighbours). An island is a region of the object, connected by edges or corners (8 neighbours).
Holes are filled first, then islands are removed, as segment-anything's ``remove_small_regions`` is applied. The largest
island always stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.rle import BoolArray
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.installation import install_extra

#: No image has more pixels.
_LARGEST = 10**9
_USAGE = 'clean is a number of pixels, or {"holes": 64, "islands": 64}'


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Sizes in original pixels; regions with fewer pixels are cleaned. 0 keeps all of a kind."""

    holes: int = 0
    islands: int = 0

    def as_json(self) -> dict[str, int]:
        """As in ``prompt_json`` and ``result_json``."""
        return {"holes": self.holes, "islands": self.islands}


def cleaning_from(value: Any) -> Cleaning | None:
    """The ``clean`` of a prompt: a number for both sizes, or a mapping; None if nothing is cleaned.

    Raises:
        InvalidInput: if it is neither, or if a size is not a whole number from 0 to 1e9.
    """
    if value is None:
        return None
    if isinstance(value, Cleaning):
        value = value.as_json()
    if isinstance(value, Mapping):
        unknown = sorted(str(name) for name in value if name not in ("holes", "islands"))
        if unknown:
            raise InvalidInput(f"clean has the unknown key {unknown[0][:60]!r}: known are holes and islands")
        cleaning = Cleaning(_size(value.get("holes", 0), "holes"), _size(value.get("islands", 0), "islands"))
    else:
        size = _size(value, "")
        cleaning = Cleaning(size, size)
    return cleaning if cleaning.holes or cleaning.islands else None


def _size(value: Any, name: str) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        what = f"{name} of clean is a whole number of pixels" if name else _USAGE
        raise InvalidInput(f"{what}, from 0 to {_LARGEST:,}, not {repr(value)[:60]}")
    return value


def clean_mask(mask: BoolArray, cleaning: Cleaning) -> BoolArray:
    """[H,W] bool -> [H,W] bool, a new array if something changes."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return mask
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    # The frame of background joins everything that is not enclosed.
    framed = np.pad(mask[box], 1)
    cleaned = _without_islands(_without_holes(framed, cleaning.holes), cleaning.islands)
    if cleaned is framed:
        return mask
    result = np.zeros_like(mask)
    result[box] = cleaned[1:-1, 1:-1]
    return result


def _without_holes(framed: BoolArray, size: int) -> BoolArray:
    if size <= 1:  # no region has fewer pixels than one
        return framed
    regions, sizes = _regions(~framed, 4)
    is_filled = sizes < size
    is_filled[[0, regions[0, 0]]] = False  # the object, and the outside
    return framed | is_filled[regions] if is_filled.any() else framed


def _without_islands(framed: BoolArray, size: int) -> BoolArray:
    if size <= 1:
        return framed
    regions, sizes = _regions(framed, 8)
    is_kept = (sizes >= size) | (sizes == sizes[1:].max())
    is_kept[0] = False  # the background
    kept: BoolArray = is_kept[regions]
    return framed if is_kept[1:].all() else kept


def _regions(mask: BoolArray, neighbours: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(the label of each pixel, 0 where ``mask`` is false; the pixels of each label)."""
    try:
        import cv2
    except ImportError:
        raise SetupError(f"cleaning masks needs OpenCV: {install_extra('server')}") from None
    _, regions, facts, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=neighbours)
    return np.asarray(regions), np.asarray(facts[:, cv2.CC_STAT_AREA])
