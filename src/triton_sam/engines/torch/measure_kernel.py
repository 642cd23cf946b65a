"""GPU kernels that look at full-size masks without writing them. Imports triton, so only measuring.py may import it.

Both resize as :mod:`.pack_kernel` does, one pixel at a time from the few logits around it, in any dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Pixels of one program at a time: rows, and columns of each.
_DOWN, _ACROSS = tl.constexpr(8), tl.constexpr(128)
#: Pixels of one program of :func:`trace`.
_BLOCK = tl.constexpr(1024)
_WARPS = 4
#: Numbers of a mask.
NUMBERS = 7
#: Offsets have 32 bits.
MOST_BYTES = 2**31 - _BLOCK.value


def measure(
    logits: Tensor, scores: Tensor, least: float, limits: tuple[float, float, float], size: tuple[int, int]
) -> Tensor:
    """See :func:`~triton_sam.engines.torch.measuring.measured`; ``size`` is (height, width)."""
    rows, masks, in_height, in_width = logits.shape
    row_step, mask_step, *pixel_steps = logits.stride()
    if pixel_steps != [in_width, 1] or scores.stride(1) != 1:
        raise ValueError(f"masks and scores must be contiguous, not {logits.stride()} and {scores.stride()}")
    height, width = size
    found = torch.zeros(rows * masks, NUMBERS, dtype=torch.int32, device=logits.device)
    steps = (row_step, mask_step, scores.stride(0), masks)
    sizes = (in_height, in_width, height, width)
    grid = rows * masks, -(-height // _DOWN.value), 1
    scales = in_height / height, in_width / width
    _measure[grid](logits, scores, found, *steps, *sizes, *scales, least, *limits, num_warps=_WARPS)
    return found


def trace(
    logits: Tensor, threshold: float, size: tuple[int, int], corner: tuple[int, int], whole: tuple[int, int]
) -> Tensor:
    """See :func:`~triton_sam.engines.torch.tracing.changes`.

    Args:
        size: (height, width) of the crop that the logits [K,h,w] cover, corner: its (y, x) in an image of ``whole``
            (height, width). K * (height * width + 1) of that is at most :data:`MOST_BYTES`.
    """
    if not logits.is_contiguous():
        raise ValueError("masks must be contiguous")
    count, in_height, in_width = logits.shape
    length = whole[0] * whole[1] + 1
    target = torch.empty(count, length, dtype=torch.bool, device=logits.device)
    grid = -(-length // _BLOCK.value), count, 1
    sizes = (in_height, in_width, *size, *corner, whole[0])
    scales = in_height / size[0], in_width / size[1]
    _trace[grid](logits, target, length, *sizes, *scales, threshold, num_warps=_WARPS)
    return target


@triton.jit
def _value(source, x, y, kept, in_height, in_width, scale_y, scale_x):  # type: ignore[no-untyped-def]
    """The resized logits at some pixels; the arithmetic of torch's ``interpolate(align_corners=False)``."""
    at_y = tl.maximum(scale_y * (y.to(tl.float32) + 0.5) - 0.5, 0.0)
    top = tl.minimum(at_y.to(tl.int32), in_height - 1)
    lower_share = at_y - top.to(tl.float32)
    at_x = tl.maximum(scale_x * (x.to(tl.float32) + 0.5) - 0.5, 0.0)
    left = tl.minimum(at_x.to(tl.int32), in_width - 1)
    right_share = at_x - left.to(tl.float32)
    left_share = 1.0 - right_share
    upper = source + top * in_width
    lower = source + tl.minimum(top + 1, in_height - 1) * in_width
    right = tl.minimum(left + 1, in_width - 1)
    above = left_share * tl.load(upper + left, mask=kept, other=0.0).to(tl.float32)
    above += right_share * tl.load(upper + right, mask=kept, other=0.0).to(tl.float32)
    below = left_share * tl.load(lower + left, mask=kept, other=0.0).to(tl.float32)
    below += right_share * tl.load(lower + right, mask=kept, other=0.0).to(tl.float32)
    return (1.0 - lower_share) * above + lower_share * below


# Many parameters: a kernel takes pointers, strides and sizes one by one.
@triton.jit(
    do_not_specialize=[
        "row_step", "mask_step", "score_step", "masks", "in_height", "in_width", "height", "width"
    ],
    do_not_specialize_on_alignment=["logits", "scores"],
)  # fmt: skip
def _measure(  # type: ignore[no-untyped-def]
    logits, scores, found, row_step, mask_step, score_step, masks, in_height, in_width, height, width,
    scale_y, scale_x, least, low, middle, high,
):  # fmt: skip
    """Counts a band of rows of one mask. Masks whose score is too low cost one load."""
    which = tl.program_id(0)
    row = which // masks
    mask = which - row * masks
    if tl.load(scores + row * score_step + mask) > least:
        source = logits + row * row_step + mask * mask_step
        y = tl.program_id(1) * _DOWN + tl.arange(0, _DOWN)[:, None]
        above_low = tl.zeros([_DOWN, _ACROSS], tl.int32)
        above = tl.zeros([_DOWN, _ACROSS], tl.int32)
        above_high = tl.zeros([_DOWN, _ACROSS], tl.int32)
        # Counted from 1, from the left and from the right, so that 0 stands for none.
        last = tl.zeros([_DOWN, _ACROSS], tl.int32)
        first = tl.zeros([_DOWN, _ACROSS], tl.int32)
        for start in range(0, width, _ACROSS):
            x = start + tl.arange(0, _ACROSS)[None, :]
            kept = (y < height) & (x < width)
            value = _value(source, x, y, kept, in_height, in_width, scale_y, scale_x)
            inside = (value > middle) & kept
            above_low += ((value > low) & kept).to(tl.int32)
            above += inside.to(tl.int32)
            above_high += ((value > high) & kept).to(tl.int32)
            last = tl.maximum(last, tl.where(inside, x + 1, 0))
            first = tl.maximum(first, tl.where(inside, width - x, 0))
        target = found + which * 7
        total = tl.sum(above_low)
        if total > 0:
            tl.atomic_add(target, total)
            tl.atomic_add(target + 1, tl.sum(above))
            tl.atomic_add(target + 2, tl.sum(above_high))
            tl.atomic_max(target + 3, tl.max(first))
            tl.atomic_max(target + 4, tl.max(tl.where(above > 0, height - y, 0)))
            tl.atomic_max(target + 5, tl.max(last))
            tl.atomic_max(target + 6, tl.max(tl.where(above > 0, y + 1, 0)))


# Many parameters: as above.
@triton.jit
def _inside(  # type: ignore[no-untyped-def]
    source, place, in_height, in_width, height, width, top, left, full_height, scale_y, scale_x, threshold
):
    """Whether pixels, counted down the columns of the whole image, belong to the mask. None outside the crop do."""
    column = place // full_height
    x = column - left
    y = place - column * full_height - top
    kept = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return (_value(source, x, y, kept, in_height, in_width, scale_y, scale_x) > threshold) & kept


# Many parameters: as above.
@triton.jit(
    do_not_specialize=[
        "length", "in_height", "in_width", "height", "width", "top", "left", "full_height"
    ],
    do_not_specialize_on_alignment=["logits", "target"],
)  # fmt: skip
def _trace(  # type: ignore[no-untyped-def]
    logits, target, length, in_height, in_width, height, width, top, left, full_height, scale_y, scale_x, threshold
):
    """Whether each pixel differs from the one before it."""
    mask = tl.program_id(1)
    place = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    source = logits + mask * in_height * in_width
    # The pixel before the first one is in no crop, and neither is the one after the last.
    here = _inside(
        source, place, in_height, in_width, height, width, top, left, full_height, scale_y, scale_x, threshold
    )
    before = _inside(
        source, place - 1, in_height, in_width, height, width, top, left, full_height, scale_y, scale_x, threshold
    )
    changes = (here != before) | (place == length - 1)
    tl.store(target + mask * length + place, changes, mask=place < length)
