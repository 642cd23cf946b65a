"""A GPU kernel for full-size masks in packed bits. Imports triton, so only packing.py may import it.

Torch's operators write the resized logits, compare, pad, gather bits and copy them: eight launches, and 33 bytes of
traffic for each pixel. Here a program reads the few logits around its pixels and writes bits to host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_sam.engines.base import ByteArray

#: Output bytes of one program, of eight pixels each. Four per thread: a warp writes 128 bytes at a time.
_BLOCK = tl.constexpr(512)
#: The same number in columns: bytes down, columns across. Threads side by side read logits that lie side by side, and
#: a warp writes 32 bytes at a time. One column a warp would read from 32 rows of logits at once.
_DOWN, _ACROSS = tl.constexpr(32), tl.constexpr(16)
_WARPS = 4
#: Offsets have 32 bits.
MOST_BYTES = 2**31 - _BLOCK.value
#: (device, whether columns are packed) -> the compiled kernel. Called through this handle it is never compiled again in
#: the middle of a click, and it skips triton's checks before each launch, which take longer than the launch.
_compiled: dict[tuple[torch.device, bool], Any] = {}


def pack(
    logits: Tensor,
    height: int,
    width: int,
    take: Callable[[int], ByteArray | None] | None = None,
    *,
    columns: bool = False,
) -> ByteArray:
    """[R,M,h,w] float32 -> [R,M,height,ceil(width/8)] uint8 in host memory, valid after the stream is synchronised.

    Args:
        logits: any strides between masks, but each mask contiguous. On the current device.
        height, width: the result has at most :data:`MOST_BYTES`.
        take: gives so many bytes of host memory that the device can write, or None; it is asked first.
        columns: pack the same pixels to [R,M,width,ceil(height/8)]; spare bits are like the column's last pixel.
    """
    rows, masks, in_height, in_width = logits.shape
    row_step, mask_step, *pixel_steps = logits.stride()
    if logits.dtype is not torch.float32 or pixel_steps != [in_width, 1]:
        raise ValueError(f"logits must be contiguous float32, not {logits.dtype} with strides {logits.stride()}")
    lines, pitch = (width, -(-height // 8)) if columns else (height, -(-width // 8))
    size = rows * masks * lines * pitch
    block: int = _BLOCK.value
    # Programs for rows write whole blocks: a store without a mask per byte is vectorised.
    room = -(-size // block) * block
    tiles = -(-width // _ACROSS.value), -(-pitch // _DOWN.value), rows * masks
    grid = tiles if columns else (room // block, 1, 1)
    given = None if take is None else take(room)
    if given is None:
        given = torch.empty(room, dtype=torch.uint8, pin_memory=logits.is_cuda).numpy()
    target = torch.from_numpy(given)
    numbers = (size, row_step, mask_step, masks, in_height, in_width, height, width)
    scales = in_height / height, in_width / width
    compiled = _compiled.get((logits.device, columns))
    if compiled is not None:
        compiled[grid](logits, target, *numbers, *scales)
    else:
        kernel = _pack_columns if columns else _pack_rows
        found = kernel[grid](logits, target, *numbers, *scales, num_warps=_WARPS)
        if found is not None:  # None in triton's interpreter
            _compiled[logits.device, columns] = found
    return np.ndarray((rows, masks, lines, pitch), np.uint8, given)


@triton.jit
def _neighbours(place, scale, count):  # type: ignore[no-untyped-def]
    """Pixels along one axis -> the two logits on either side of each, and the share of the second one.

    The arithmetic of both axes is that of torch's ``interpolate(mode="bilinear", align_corners=False)``.
    """
    at = tl.maximum(scale * (place.to(tl.float32) + 0.5) - 0.5, 0.0)
    first = tl.minimum(at.to(tl.int32), count - 1)
    share = at - first.to(tl.float32)
    return first, tl.minimum(first + 1, count - 1), share


@triton.jit
def _is_object(upper, lower, left, right, lower_share, right_share, kept):  # type: ignore[no-untyped-def]
    """Whether the resized logit is positive.

    Rows and columns of a mask have this one expression, and its products are fused here: left to itself the compiler
    fuses one or the other, and a logit that is almost zero would differ between the two.
    """
    left_share = 1.0 - right_share
    upper_share = 1.0 - lower_share
    above = right_share * tl.load(upper + right, mask=kept, other=0.0)
    above = tl.fma(left_share, tl.load(upper + left, mask=kept, other=0.0), above)
    below = right_share * tl.load(lower + right, mask=kept, other=0.0)
    below = tl.fma(left_share, tl.load(lower + left, mask=kept, other=0.0), below)
    return tl.fma(upper_share, above, lower_share * below) > 0


# Many parameters: a kernel takes pointers, strides and sizes one by one.
@triton.jit(
    do_not_specialize=["size", "row_step", "mask_step", "masks", "in_height", "in_width", "height", "width"],
    do_not_specialize_on_alignment=["logits"],  # masks may begin at any address; the target is aligned
)
def _pack_rows(  # type: ignore[no-untyped-def]
    logits, target, size, row_step, mask_step, masks, in_height, in_width, height, width, scale_y, scale_x
):
    """Computes a block of output bytes. No argument is constexpr, so that one compiled kernel serves all sizes."""
    pitch = (width + 7) // 8
    place = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    kept = place < size
    line = place // pitch
    first = (place - line * pitch) * 8
    which = line // height
    y = line - which * height
    row = which // masks
    source = logits + row * row_step + (which - row * masks) * mask_step

    top, bottom, lower_share = _neighbours(y, scale_y, in_height)
    upper = source + top * in_width
    lower = source + bottom * in_width
    bits = tl.zeros([_BLOCK], tl.int32)
    for bit in tl.static_range(8):
        x = first + bit  # pixels beyond the width are computed and discarded
        left, right, right_share = _neighbours(x, scale_x, in_width)
        inside = _is_object(upper, lower, left, right, lower_share, right_share, kept) & (x < width)
        bits += inside.to(tl.int32) << (7 - bit)
    tl.store(target + place, bits.to(tl.uint8))


# Many parameters: as above, and the same ones.
@triton.jit(
    do_not_specialize=["size", "row_step", "mask_step", "masks", "in_height", "in_width", "height", "width"],
    do_not_specialize_on_alignment=["logits"],
)
def _pack_columns(  # type: ignore[no-untyped-def]
    logits, target, size, row_step, mask_step, masks, in_height, in_width, height, width, scale_y, scale_x
):
    """Computes some bytes of some columns of one mask."""
    pitch = (height + 7) // 8
    # Columns are the first axis: where addresses tell the compiler nothing, threads lie along that.
    x = tl.program_id(0) * _ACROSS + tl.arange(0, _ACROSS)[:, None]
    byte = tl.program_id(1) * _DOWN + tl.arange(0, _DOWN)[None, :]
    which = tl.program_id(2)
    kept = (byte < pitch) & (x < width)
    row = which // masks
    source = logits + row * row_step + (which - row * masks) * mask_step

    left, right, right_share = _neighbours(x, scale_x, in_width)
    bits = tl.zeros([_ACROSS, _DOWN], tl.int32)
    for bit in tl.static_range(8):
        y = tl.minimum(byte * 8 + bit, height - 1)
        top, bottom, lower_share = _neighbours(y, scale_y, in_height)
        upper = source + top * in_width
        lower = source + bottom * in_width
        inside = _is_object(upper, lower, left, right, lower_share, right_share, kept)
        bits += inside.to(tl.int32) << (7 - bit)
    tl.store(target + (which * width + x) * pitch + byte, bits.to(tl.uint8), mask=kept)
