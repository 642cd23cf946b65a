"""COCO's run-length encoding of masks.

Runs go down the columns, from left to right: background, object, background, ... and cover the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput

BoolArray = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
_GROUP_BITS = 5
#: Counts are differences of two numbers below 2**31: 32 bits and a sign.
_MOST_GROUPS = 7


def rle(mask: BoolArray) -> dict[str, Any]:
    """[H,W] bool -> COCO's compressed RLE, ``{"size": [H, W], "counts": str}``, equal to pycocotools' own."""
    return rle_of_bits(np.packbits(mask, axis=1), mask.shape[1])


def rle_of_bits(packed: npt.NDArray[np.uint8], width: int) -> dict[str, Any]:
    """[H,ceil(W/8)] packed rows, spare bits zero -> the RLE of the mask.

    Only bytes that differ from those of the row above are unpacked, and no column is put together: transposing the
    pixels takes several times as long.
    """
    height, pitch = packed.shape
    top, bottom = (np.unpackbits(packed[row], count=width) for row in (0, -1))
    edges = (packed[1:] ^ packed[:-1]).ravel()
    at = np.flatnonzero(edges != 0)
    which, bit = np.nonzero(np.unpackbits(edges[at][:, None], axis=1))
    row, byte = np.divmod(at[which], pitch)
    changes = np.concatenate(
        ((byte * 8 + bit) * height + row + 1, (np.flatnonzero(bottom[:-1] != top[1:]) + 1) * height)
    )
    changes.sort()
    return _document(changes, bool(top[0]), height, width)


def rle_of_logits(logits: npt.NDArray[np.float32], height: int, width: int) -> dict[str, Any]:
    """[h,w] logits -> the RLE of ``resize(logits, (H, W)) > 0``, without computing those H x W pixels.

    Between two rows of logits a column of the resized image is a straight line, so it changes sign once at most, and
    only there pixels are computed. The cost grows with a mask's outline, not with its area. H is at least twice h.
    Bilinear with pixel centres at 0.5, as OpenCV's resize. The two may disagree about a pixel whose resized logit is
    zero up to rounding (1e-7 of its neighbours).
    """
    import cv2

    rows = logits.shape[0]
    # Only the horizontal half of the resize, [h,W], with columns contiguous in memory.
    columns = np.ascontiguousarray(cv2.resize(logits, (width, rows), interpolation=cv2.INTER_LINEAR).T)
    # The border is repeated: interval k is between rows k - 1 and k, from 0 to h.
    columns = np.concatenate((columns[:, :1], columns, columns[:, -1:]), axis=1)
    places = ((np.arange(height) + 0.5) * (rows / height) - 0.5).astype(np.float32)
    floors = np.floor(places)
    below = places - floors
    first = np.searchsorted(floors, np.arange(-1, rows + 1))  # first pixel of each interval; the last entry is the end

    is_object = columns > 0
    at, interval = np.nonzero(is_object[:, 1:] != is_object[:, :-1])
    upper, lower = columns[at, interval], columns[at, interval + 1]
    # A window as long as the longest interval; pixels beyond an interval's own end are masked out below.
    steps = np.arange(int(np.diff(first).max(initial=1)))
    pixels = first[interval][:, None] + steps
    share = below[np.minimum(pixels, height - 1)]
    values = upper[:, None] * (np.float32(1) - share) + lower[:, None] * share
    is_still = ((values > 0) == (upper > 0)[:, None]) & (pixels < first[interval + 1][:, None])
    row = first[interval] + is_still.sum(axis=1)

    top, bottom = is_object[:, 0], is_object[:, -1]
    joints = np.flatnonzero(bottom[:-1] != top[1:]) + 1
    changes, times = np.unique(np.concatenate((at * height + row, joints * height)), return_counts=True)
    # A dip between two pixels changes the sign twice at the same pixel, which cancels out.
    return _document(changes[times % 2 == 1], bool(top[0]), height, width)


def _document(changes: Counts, begins_with_object: bool, height: int, width: int) -> dict[str, Any]:
    """``changes``: the pixels, counted down the columns, at which a run begins, without the first run."""
    counts = np.diff(np.concatenate(([0], changes, [height * width])))
    if begins_with_object:
        counts = np.concatenate(([0], counts))
    return {"size": [height, width], "counts": _pack_counts(counts)}


def _pack_counts(counts: Counts) -> str:
    """COCO's text form: differences to the count two before, in groups of 5 bits, lowest first, starting at '0'."""
    # Images have fewer than 2**31 pixels, and half the bytes take half the time.
    deltas = counts.astype(np.int32)
    deltas[3:] -= deltas[1:-2].copy()
    most = _groups_of(int(deltas.min(initial=0)), int(deltas.max(initial=0)))
    # [N,most]: every group of every number. Shifting keeps the sign, so a number ends where only sign bits are left.
    number = np.arange(most, dtype=np.int32)
    rest = deltas[:, None] >> (_GROUP_BITS * np.arange(most + 1, dtype=np.int32)).clip(max=31)
    groups = rest[:, :-1] & 0x1F
    is_last = rest[:, 1:] == -(groups >> 4)
    is_last[:, -1] = True
    length = is_last.argmax(axis=1)[:, None]
    characters = (groups + np.where(number < length, np.int32(0x20 + 48), np.int32(48))).astype(np.uint8)
    return str(characters[number <= length].tobytes(), "ascii")


def _groups_of(least: int, most: int) -> int:
    """How many groups of 5 bits hold every number between two, with its sign."""
    return -(-(max(most, ~least).bit_length() + 1) // _GROUP_BITS)


def _unpack_counts(text: str) -> Counts:
    """The inverse of :func:`_pack_counts`; nothing for other text, which then covers no image."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero((codes & 0x20) == 0)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts[: len(ends)] + 1
    is_whole = len(ends) > 0 and ends[-1] == len(codes) - 1 and lengths.max() <= _MOST_GROUPS
    if not is_whole or codes.min() < 0 or codes.max() > 0x3F:
        return np.zeros(0, np.int64)
    shift = _GROUP_BITS * (np.arange(len(codes)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((codes & 0x1F) << shift, starts)
    counts -= ((codes[ends] & 0x10) != 0) * (np.int64(1) << (_GROUP_BITS * lengths))  # the sign
    for first in (1, 2):  # from the fourth on, differences to the count two before
        np.cumsum(counts[first::2], out=counts[first::2])
    return counts


def runs(document: Mapping[str, Any]) -> Counts:
    """COCO's RLE (compressed or a list of counts) -> [N] lengths of background, object, background, ... in turn."""
    height, width = (int(side) for side in document["size"])
    counts = document["counts"]
    if isinstance(counts, bytes):
        counts = counts.decode("ascii")
    lengths = _unpack_counts(counts) if isinstance(counts, str) else np.asarray(counts, dtype=np.int64)
    if lengths.sum() != height * width or (lengths < 0).any():
        raise InvalidInput(f"the RLE does not cover {width} x {height} pixels")
    return lengths


def from_rle(document: Mapping[str, Any]) -> BoolArray:
    """COCO's RLE (compressed or a list of counts) -> [H,W] bool."""
    height, width = (int(side) for side in document["size"])
    lengths = runs(document)
    values = np.zeros(len(lengths), np.bool_)
    values[1::2] = True
    return np.ascontiguousarray(np.repeat(values, lengths).reshape(width, height).T)
