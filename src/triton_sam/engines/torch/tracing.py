"""COCO's run lengths of full-size masks, made on the device: only text reaches the host.

The same text as :func:`~triton_sam.core.rle.rle`, for many masks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from triton_sam.core.geometry import Frame
from triton_sam.engines.torch import measuring
from triton_sam.engines.torch.packing import full_size_logits

#: Pixels of all masks that are looked at in one go; torch's operators need 9 bytes for each, the kernel one.
_AT_A_TIME = 2**26
_AT_A_TIME_BY_KERNEL = 2**28
#: Run lengths that are written as text at a time, 100 bytes each.
_COUNTS = 2**22
_GROUP_BITS = 5
#: Counts are differences of two numbers below 2**31: 32 bits and a sign.
_MOST_GROUPS = 7

#: x0, y0, x1, y1 in original pixels, the last ones exclusive.
Crop = tuple[int, int, int, int]


def run_lengths(
    logits: Tensor, threshold: float, frame: Frame, crop: Crop, whole: tuple[int, int], *, by_kernel: bool
) -> list[dict[str, Any]]:
    """[K,h,w] logits of a crop, in any dtype -> for each mask ``{"size": [H, W], "counts": str}`` of the whole image.

    Waits for the device.

    Args:
        frame: of the crop, whose box in the image is ``crop``.
        whole: (width, height) of the image.
        by_kernel: see :mod:`.measure_trial`.
    """
    width, height = whole
    by_kernel = by_kernel and measuring.may_use_kernel(frame)
    each = max(1, (_AT_A_TIME_BY_KERNEL if by_kernel else _AT_A_TIME) // (width * height))
    found: list[dict[str, Any]] = []
    for some in torch.split(logits, each):
        flags = changes(some, threshold, frame, crop, whole, by_kernel=by_kernel)
        found += ({"size": [height, width], "counts": text} for text in _texts(flags))
    return found


def changes(
    logits: Tensor, threshold: float, frame: Frame, crop: Crop, whole: tuple[int, int], *, by_kernel: bool
) -> Tensor:
    """[K,h,w] -> [K,W*H+1] bool: whether each pixel differs from the one before, down the columns of the whole image.

    Before the first pixel is background; after the last one is an end, which always counts.
    """
    width, height = whole
    x0, y0, x1, y1 = crop
    if by_kernel:
        assert measuring.kernel is not None
        found: Tensor = measuring.kernel.trace(
            logits.contiguous(), threshold, (frame.height, frame.width), (y0, x0), (height, width)
        )
        return found
    inside = full_size_logits(logits.float(), frame) > threshold
    pasted = functional.pad(inside, (x0, width - x1, y0, height - y1))
    columns = functional.pad(pasted.transpose(1, 2).flatten(1), (1, 0))
    differs = columns[:, 1:] != columns[:, :-1]
    return functional.pad(differs, (0, 1), value=True)


def _texts(flags: Tensor) -> list[str]:
    """[K,L] of :func:`changes` -> the text of each mask."""
    which, place = flags.nonzero(as_tuple=True)  # in order; the one wait for the number of runs
    ends = torch.searchsorted(which, torch.arange(1, len(flags) + 1, device=which.device))
    counts = place.diff(prepend=place.new_zeros(1))
    is_first = functional.pad(which.diff() != 0, (1, 0), value=True)
    counts = torch.where(is_first, place, counts)
    number = torch.arange(len(which), device=which.device) - functional.pad(ends[:-1], (1, 0))[which]
    # Differences to the count two before, from the fourth on.
    deltas = counts - torch.where(number > 2, functional.pad(counts, (2, 0))[:-2], 0)
    pieces, lengths = zip(*map(_characters, torch.split(deltas, _COUNTS)), strict=True)
    last = torch.cat(lengths).cumsum(0)[ends - 1].tolist()
    text = str(torch.cat(pieces).cpu().numpy().tobytes(), "ascii")
    return [text[start:end] for start, end in _between(last)]


def _characters(deltas: Tensor) -> tuple[Tensor, Tensor]:
    """[N] -> their characters, one after the other, and [N] how many each has.

    COCO's text: groups of 5 bits, lowest first, starting at '0'; another bit tells that more follow. A number ends
    where only its sign is left.
    """
    rest = deltas[:, None] >> (_GROUP_BITS * torch.arange(_MOST_GROUPS + 1, device=deltas.device))
    groups = rest[:, :-1] & 0x1F
    is_last = rest[:, 1:] == -(groups >> 4)
    is_last[:, -1] = True
    length = is_last.to(torch.uint8).argmax(1, keepdim=True)
    number = torch.arange(_MOST_GROUPS, device=deltas.device)
    characters = (groups + 48 + 0x20 * (number < length)).to(torch.uint8)
    return characters[number <= length], length[:, 0] + 1


def _between(ends: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for end in ends:
        yield start, end
        start = end
