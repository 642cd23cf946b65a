"""A GPU kernel that resizes, normalises, pads and casts a picture. Imports triton, so only resizing.py may import it.

Torch's operators need about ten launches, and write the picture several times in float32. Here a program reads the
bytes around its pixels and writes the encoder's input.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Output pixels of one program, each in three colours.
_BLOCK = tl.constexpr(256)
_WARPS = 4
#: Input pixels of one output pixel: with more, two passes over the picture are faster than this one.
MOST_TAPS = 256
#: Offsets have 32 bits.
_MOST_OFFSET = 2**31 - 1
#: Device and dtype -> the compiled kernel. Called through this handle it is never compiled again in the middle of a
#: request, and it skips triton's checks before each launch, which take longer than the launch.
_compiled: dict[tuple[torch.device, torch.dtype], Any] = {}


def can_resize(picture: Tensor, height: int, width: int) -> bool:
    """Whether :func:`resize` supports this picture [3,H,W] and this size."""
    last = sum((size - 1) * step for size, step in zip(picture.shape, picture.stride(), strict=True))
    return last <= _MOST_OFFSET and _taps(picture.shape[1], height) * _taps(picture.shape[2], width) <= MOST_TAPS


# Many parameters: what a kernel needs to know of a picture, its place in the model's square and the encoder.
def resize(
    picture: Tensor, height: int, width: int, side: int, normal: Tensor, dtype: torch.dtype, *, rows_first: bool
) -> Tensor:
    """[3,H,W] uint8 -> [3,side,side] in ``dtype``, with the picture in the upper left and zero elsewhere.

    Args:
        picture: any strides, see :func:`can_resize`. On the current device; read on the current stream.
        height, width: of the resized picture.
        normal: [2,3] float32, contiguous: what colours are multiplied by, and what is subtracted then.
        rows_first: resize the vertical axis first. Values are rounded after each axis.
    """
    channel_step, row_step, column_step = picture.stride()
    rows = picture.shape[1], height, row_step
    columns = picture.shape[2], width, column_step
    (inner_size, inner_target, inner_step), (outer_size, outer_target, outer_step) = (
        (rows, columns) if rows_first else (columns, rows)
    )
    sizes = inner_size, outer_size, _taps(inner_size, inner_target), _taps(outer_size, outer_target)
    numbers = (channel_step, inner_step, outer_step, *sizes, int(rows_first), height, width, side)
    scales = inner_size / inner_target, outer_size / outer_target
    target = torch.empty(3, side, side, dtype=dtype, device=picture.device)
    programs = -(-side * side // _BLOCK.value)
    compiled = _compiled.get((picture.device, dtype))
    if compiled is not None:
        compiled[programs, 1, 1](picture, normal, target, *numbers, *scales)
    else:
        # Without fusion, except where the kernel asks for it: its roundings shall be those of torch's operators.
        found = _resize[programs, 1, 1](
            picture, normal, target, *numbers, *scales, num_warps=_WARPS, enable_fp_fusion=False
        )
        if found is not None:  # None in triton's interpreter
            _compiled[picture.device, dtype] = found
    return target


def _taps(size: int, target: int) -> int:
    """The most input pixels along an axis that an output pixel depends on."""
    return 1 if size == target else math.ceil(2 * max(size / target, 1.0))


# Many parameters: a kernel takes pointers, strides and sizes one by one.
@triton.jit(
    do_not_specialize=[
        "channel_step",
        "inner_step",
        "outer_step",
        "inner_size",
        "outer_size",
        "inner_taps",
        "outer_taps",
        "rows_first",
        "height",
        "width",
        "side",
    ],
    do_not_specialize_on_alignment=["picture", "normal"],  # a picture may begin at any address; the target is aligned
)
def _resize(  # type: ignore[no-untyped-def]
    picture,
    normal,
    target,
    channel_step,
    inner_step,
    outer_step,
    inner_size,
    outer_size,
    inner_taps,
    outer_taps,
    rows_first,
    height,
    width,
    side,
    inner_scale,
    outer_scale,
):
    """Computes a block of output pixels. No argument is constexpr, so that one compiled kernel serves all sizes.

    The inner axis is resized first. The arithmetic is that of torch's ``interpolate(mode="bilinear", antialias=True)``
    for each axis.
    """
    place = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    y = place // side
    x = place - y * side
    inside = (y < height) & (x < width)
    inner_first, inner_count, inner_offset = _span(tl.where(rows_first > 0, y, x), inner_size, inner_scale)
    outer_first, outer_count, outer_offset = _span(tl.where(rows_first > 0, x, y), outer_size, outer_scale)
    inner_total = _total(inner_taps, inner_count, inner_offset, inner_scale)
    outer_total = _total(outer_taps, outer_count, outer_offset, outer_scale)

    red = tl.zeros([_BLOCK], tl.float32)
    green = tl.zeros([_BLOCK], tl.float32)
    blue = tl.zeros([_BLOCK], tl.float32)
    for outer_tap in range(outer_taps):
        line = picture + tl.minimum(outer_first + outer_tap, outer_size - 1) * outer_step
        line_red = tl.zeros([_BLOCK], tl.float32)
        line_green = tl.zeros([_BLOCK], tl.float32)
        line_blue = tl.zeros([_BLOCK], tl.float32)
        for inner_tap in range(inner_taps):
            # Beyond the last pixel of a span the weight is zero; the address stays inside the picture.
            cell = line + tl.minimum(inner_first + inner_tap, inner_size - 1) * inner_step
            part = tl.div_rn(_weight(inner_tap, inner_count, inner_offset, inner_scale), inner_total)
            line_red = tl.fma(part, tl.load(cell, mask=inside, other=0).to(tl.float32), line_red)
            cell += channel_step
            line_green = tl.fma(part, tl.load(cell, mask=inside, other=0).to(tl.float32), line_green)
            cell += channel_step
            line_blue = tl.fma(part, tl.load(cell, mask=inside, other=0).to(tl.float32), line_blue)
        share = tl.div_rn(_weight(outer_tap, outer_count, outer_offset, outer_scale), outer_total)
        red = tl.fma(share, tl.floor(line_red + 0.5), red)
        green = tl.fma(share, tl.floor(line_green + 0.5), green)
        blue = tl.fma(share, tl.floor(line_blue + 0.5), blue)

    written = target + place
    plane = side * side
    _store(written, red, normal, inside, place < plane)
    _store(written + plane, green, normal + 1, inside, place < plane)
    _store(written + 2 * plane, blue, normal + 2, inside, place < plane)


@triton.jit
def _span(place, size, scale):  # type: ignore[no-untyped-def]
    """Output pixels [B] -> first input pixel, how many, and how far the first lies from the centre, each [B]."""
    support = tl.maximum(scale, 1.0)
    middle = place.to(tl.float32) + 0.5
    first = tl.maximum((tl.fma(middle, scale, -support) + 0.5).to(tl.int32), 0)
    end = tl.minimum((tl.fma(middle, scale, support) + 0.5).to(tl.int32), size)
    return first, end - first, tl.fma(middle, -scale, first.to(tl.float32))


@triton.jit
def _weight(tap, count, offset, scale):  # type: ignore[no-untyped-def]
    """The weights [B] of one input pixel of each span, which do not add up to 1 yet."""
    distance = tl.abs((offset + tap + 0.5) * tl.div_rn(1.0, tl.maximum(scale, 1.0)))
    return tl.where(tap < count, tl.maximum(1.0 - distance, 0.0), 0.0)


@triton.jit
def _total(taps, count, offset, scale):  # type: ignore[no-untyped-def]
    """The sums [B] of the weights; 1 where there are none, beyond the picture."""
    total = tl.zeros([_BLOCK], tl.float32)
    for tap in range(taps):
        total += _weight(tap, count, offset, scale)
    return tl.where(total > 0.0, total, 1.0)


@triton.jit
def _store(written, colour, normal, inside, kept):  # type: ignore[no-untyped-def]
    """Normalises and stores one colour [B]; ``normal`` points at its row of the first column."""
    value = tl.floor(colour + 0.5) * tl.load(normal) - tl.load(normal + 3)
    tl.store(written, tl.where(inside, value, 0.0).to(written.dtype.element_ty), mask=kept)
