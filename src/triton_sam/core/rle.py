"""COCO's run-length encoding of masks.

Runs go down the columns, from left to right: background, object, background, ... and cover the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput

BoolArray = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
_GROUP_BITS = 5
#: Counts of at most three groups, -2**14 to 2**14 - 1, are written by a table.
_SHORT_GROUPS = 3
_SHORT = 2 ** (_SHORT_GROUPS * _GROUP_BITS - 1)
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


def rle_of_columns(packed: npt.NDArray[np.uint8], height: int) -> dict[str, Any]:
    """[W,ceil(H/8)] packed columns, spare bits like the column's last pixel -> the RLE of the mask.

    The columns are one row of bits, in which a run begins wherever a bit differs from the one before. Spare bits begin
    none.
    """
    width, pitch = packed.shape
    flat = packed.reshape(-1)
    edges = np.zeros(-(-flat.size // 8) * 8, np.uint8)  # whole words
    edge = np.right_shift(flat, np.uint8(1), out=edges[: flat.size])
    edge ^= flat
    edge[1:] ^= flat[:-1] * np.uint8(128)  # faster than a shift
    begins_with_object = flat[0] >= 128
    if begins_with_object:  # nothing changes at the first pixel
        edge[0] ^= 128
    words = edges.view(">u8")  # first pixel in the highest bit
    at = np.flatnonzero(words.view(np.uint64) != 0)
    changes = _set_bits(words[at].astype(np.uint64), at)
    if height % 8:
        changes -= changes // (8 * pitch) * (8 * pitch - height)
    return _document(changes, bool(begins_with_object), height, width)


def _set_bits(words: npt.NDArray[np.uint64], at: Counts) -> Counts:
    """The places of all set bits, ascending: 64 * ``at`` is the place of a word's highest bit. No word is 0."""
    is_power = words & (words - np.uint64(1)) == 0
    # Most words have one bit. As a float it is a power of two, whose exponent is exact.
    exponent = words.astype(np.float64).view(np.int64) >> 52
    places = 64 * at - (exponent - (1023 + 63))
    if is_power.all():
        return places
    many = np.flatnonzero(~is_power)
    bits = np.flatnonzero(np.unpackbits(words[many].astype(">u8").view(np.uint8)).view(np.bool_))
    places = np.concatenate((places[is_power], 64 * at[many][bits >> 6] + (bits & 63)))
    places.sort(kind="stable")  # two ascending parts, which it merges
    return places


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
    number = deltas + np.int32(_SHORT)
    long = np.flatnonzero(number.view(np.uint32) >= 2 * _SHORT)
    number[long] = 0
    short = _short_texts()[number].tobytes()
    # Few are long: the first run, the last one, and those between parts of a mask.
    pieces, done = [], 0
    for place, delta in zip(long.tolist(), deltas[long].tolist(), strict=True):
        pieces += [short[done : 4 * place], _long_text(delta)]
        done = 4 * (place + 1)
    pieces.append(short[done:])
    return b"".join(pieces).translate(None, b"\0").decode("ascii")


@cache
def _short_texts() -> npt.NDArray[np.uint32]:
    """[2**15]: the text of each number from -2**14 on, in four bytes, those behind it zero."""
    numbers = np.arange(-_SHORT, _SHORT)[:, None]
    place = np.arange(4)
    groups = numbers >> _GROUP_BITS * place & 0x1F
    last = (np.maximum(numbers, ~numbers) >= 2 ** (_GROUP_BITS * place[1:_SHORT_GROUPS] - 1)).sum(axis=1, keepdims=True)
    characters = np.where(place <= last, groups + 48 + 0x20 * (place < last), 0)
    return characters.astype(np.uint8).view(np.uint32)[:, 0]


def _long_text(number: int) -> bytes:
    """The text of any number."""
    characters = bytearray()
    while True:
        group = number & 0x1F
        number >>= _GROUP_BITS
        is_last = number == -(group >> 4)  # only sign bits are left
        characters.append(group + (48 if is_last else 48 + 0x20))
        if is_last:
            return bytes(characters)


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


def area_and_bbox(rle: Mapping[str, Any]) -> tuple[int, tuple[float, float, float, float]]:
    """(pixels, (x, y, width, height)) of COCO's RLE, equal to pycocotools' ``area`` and ``toBbox``."""
    lengths = runs(rle)
    height = int(rle["size"][0])
    ends = lengths.cumsum()
    is_run = lengths[1::2] > 0  # empty runs of the object cover nothing
    behind = ends[1::2][is_run]
    first = behind - lengths[1::2][is_run]
    if not len(first):
        return 0, (0.0, 0.0, 0.0, 0.0)
    last = behind - 1
    left, right = int(first[0] // height), int(last[-1] // height)
    if (first // height != last // height).any():  # a run that goes on in the next column covers both edges
        top, bottom = 0, height - 1
    else:
        top, bottom = int((first % height).min()), int((last % height).max())
    area = int((behind - first).sum())
    return area, (float(left), float(top), float(right - left + 1), float(bottom - top + 1))


def from_rle(document: Mapping[str, Any]) -> BoolArray:
    """COCO's RLE (compressed or a list of counts) -> [H,W] bool."""
    height, width = (int(side) for side in document["size"])
    lengths = runs(document)
    values = np.zeros(len(lengths), np.bool_)
    values[1::2] = True
    return np.ascontiguousarray(np.repeat(values, lengths).reshape(width, height).T)
