"""A mask that a person gives for an object: COCO's RLE, which is only unpacked where its size is known to be right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_sam.core.json_values import kind, short
from triton_sam.core.rle import BoolArray, from_rle, runs
from triton_sam.errors import InvalidInput

_MOST_COUNT = 2**31 - 1
#: Of the text, or of its numbers: unpacking takes a hundred times as many bytes.
_LONGEST = 4 * 1024 * 1024
_FORM = '{"size": [height, width], "counts": ...} in COCO\'s RLE'


@dataclass(frozen=True, slots=True)
class GivenMask:
    """A mask as run lengths.

    Attributes:
        counts: COCO's text, or the lengths of runs.
    """

    height: int
    width: int
    counts: str | tuple[int, ...]

    def check_size(self, width: int, height: int) -> None:
        """Raises InvalidInput if the mask is not one of ``width`` x ``height`` pixels."""
        if (width, height) != (self.width, self.height):
            raise InvalidInput(
                f"the mask has {self.width} x {self.height} pixels and the frame {width} x {height}: "
                "give a mask of the frame's size"
            )

    def pixels(self) -> BoolArray:
        """[H,W]; the caller has checked the size, which decides how much memory that takes."""
        document = {"size": [self.height, self.width], "counts": self.counts}
        lengths = runs(document)
        if lengths.max(initial=0) > self.height * self.width:  # their sum may have wrapped around
            raise InvalidInput(f"the RLE does not cover {self.width} x {self.height} pixels")
        return from_rle(document)


def given_mask(value: Any) -> GivenMask:
    """The ``mask`` of a prompt; InvalidInput if it is no RLE."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"mask of video is {_FORM}, not {kind(value)}")
    unknown = sorted(str(key) for key in set(value) - {"size", "counts"})
    if unknown:
        raise InvalidInput(f"mask of video has the unknown key {short(unknown[0][:60])}: it is {_FORM}")
    size, counts = value.get("size"), value.get("counts")
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(_is_count(side) and side for side in size):
        raise InvalidInput(f"size of the mask is [height, width] in pixels, not {short(size)}")
    if isinstance(counts, list | tuple | str) and len(counts) > _LONGEST:
        raise InvalidInput(f"counts of the mask have a length of {len(counts):,}, and {_LONGEST:,} are allowed")
    if isinstance(counts, list | tuple):
        if not all(map(_is_count, counts)):
            raise InvalidInput("counts of the mask are whole numbers, or COCO's text of them")
        counts = tuple(counts)
    elif not isinstance(counts, str):
        raise InvalidInput(f"counts of the mask are COCO's text or a list of numbers, not {kind(counts)}")
    return GivenMask(size[0], size[1], counts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT
