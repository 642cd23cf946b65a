"""Numbers the instances that words find in a video: which of them are tracked already, and which are new.

The rules and numbers are those of SAM 3's published video model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.rle import from_rle

#: Of two instances of a concept whose masks have a higher IoU, the one with the lower score goes.
DUPLICATE_IOU = 0.1
#: An instance with a higher IoU with something that is tracked is that, and not new.
SAME_IOU = 0.1
#: An instance that comes later is new only with a higher score than this: what appears is often a mistake.
NEW_SCORE = 0.7

_Bits = npt.NDArray[np.uint8]
#: The number of ones in each byte. numpy 1 cannot count them.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class FoundInstance:
    """An instance of a concept in one frame.

    Attributes:
        concept: the number of the concept.
        score: from 0 to 1.
        rle: its mask as COCO's ``{"size": [H, W], "counts": str}``.
    """

    concept: int
    score: float
    rle: Mapping[str, Any]


def without_duplicates(found: Iterable[FoundInstance]) -> list[FoundInstance]:
    """By falling score; instances of another concept in the same place stay."""
    kept: list[tuple[FoundInstance, _Bits]] = []
    for one in sorted(found, key=lambda one: -one.score):
        bits = _bits(one.rle)
        alike = (other for instance, other in kept if instance.concept == one.concept)
        if bits.any() and all(_iou(bits, other) <= DUPLICATE_IOU for other in alike):
            kept.append((one, bits))
    return [one for one, _ in kept]


def new_instances(
    found: Iterable[FoundInstance], tracked: Sequence[tuple[int | None, Mapping[str, Any]]], *, is_first: bool
) -> list[FoundInstance]:
    """The instances that are not tracked yet, by falling score.

    Args:
        tracked: (concept, mask in the same frame as RLE) of each tracked object. An instance is compared with those of
            its own concept, and with those of None, which belong to no concept.
        is_first: whether nothing was looked for before: then every instance is new that is not a duplicate.
    """
    known = [(concept, _bits(mask)) for concept, mask in tracked]
    return [
        one
        for one in without_duplicates(found)
        if (is_first or one.score > NEW_SCORE)
        and all(_iou(_bits(one.rle), other) <= SAME_IOU for concept, other in known if concept in (one.concept, None))
    ]


def _bits(mask: Mapping[str, Any]) -> _Bits:
    return np.packbits(from_rle(mask))


def _iou(one: _Bits, other: _Bits) -> float:
    union = int(_ONES[one | other].sum())
    return int(_ONES[one & other].sum()) / union if union else 0.0
