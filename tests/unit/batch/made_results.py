"""Results of a batch job that nobody has computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_sam.batch.outputs.facts import JobFacts
from triton_sam.batch.records import Item, ItemResult, MaskRecord
from triton_sam.core.rle import BoolArray, rle

FACTS = JobFacts(datetime(2026, 3, 1, 22, 15, tzinfo=timezone.utc), seconds=120.0, done=3, version="0.1.0")
#: Names that break a page, a JSON file or a path that is put together carelessly.
HOSTILE = (
    '"><script>alert(1)</script>.png',
    'it\'s 100 % "quoted" & more.png',
    "two\nlines\tand\x00zero.png",
    "ä 細胞 🔬.png",
    "gnp.\u202eexe",
    "\udcff not Unicode.png",
    "${name} {0} %s.png",
)


def record_of(mask: BoolArray, score: float = 0.875, **fields: Any) -> MaskRecord:
    """The record of a mask, with its area and box."""
    ys, xs = np.nonzero(mask)
    box = (0.0, 0.0, 0.0, 0.0)
    if len(xs):
        box = (float(xs.min()), float(ys.min()), float(np.ptp(xs) + 1), float(np.ptp(ys) + 1))
    return MaskRecord(rle(mask), int(mask.sum()), box, score, **fields)


def result_of(
    masks: Sequence[MaskRecord],
    width: int,
    height: int,
    index: int = 0,
    name: str = "",
    item: Mapping[str, Any] | None = None,
) -> ItemResult:
    """The result of one image; ``item`` has further fields of it."""
    name = name or f"image_{index}.png"
    made = Item(index, name, Path("/nowhere") / f"{index}.png", f"image_{index}", **(item or {}))
    return ItemResult(made, width, height, masks, "sam2:tiny", 0.25)


def disk(width: int, height: int, x: float, y: float, radius: float) -> BoolArray:
    rows, columns = np.mgrid[:height, :width]
    inside: BoolArray = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    return inside


@st.composite
def mask_lists(draw: st.DrawFn) -> list[BoolArray]:
    """Up to five masks of one size; random pixels have holes, islands and corners that touch."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    return draw(st.lists(arrays.arrays(np.bool_, shape), max_size=5))
