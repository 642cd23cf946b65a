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
_WARPS = 4
#: Offsets have 32 bits.
MOST_BYTES = 2**31 - _BLOCK.value
#: Device -> the compiled kernel. Called through this handle it is never compiled again in the middle of a click, and it
#: skips triton's checks before each launch, which take longer than the launch.
_compiled: dict[torch.device, Any] = {}


def pack(logits: Tensor, height: int, width: int, take: Callable[[int], ByteArray | None] | None = None) -> ByteArray:
    """[R,M,h,w] float32 -> [R,M,height,ceil(width/8)] uint8 in host memory, valid after the stream is synchronised.

    Args:
        logits: any strides between masks, but each mask contiguous. On the current device.
        height, width: R*M*height*ceil(width/8) is at most :data:`MOST_BYTES`.
        take: gives so many bytes of host memory that the device can write, or None; it is asked first.
    """
    rows, masks, in_height, in_width = logits.shape
    row_step, mask_step, *pixel_steps = logits.stride()
    if logits.dtype is not torch.float32 or pixel_steps != [in_width, 1]:
        raise ValueError(f"logits must be contiguous float32, not {logits.dtype} with strides {logits.stride()}")
    pitch = -(-width // 8)
    size = rows * masks * height * pitch
    block: int = _BLOCK.value
    programs = -(-size // block)
    # Programs write whole blocks: a store without a mask per byte is vectorised.
    given = None if take is None else take(programs * block)
    if given is None:
        given = torch.empty(programs * block, dtype=torch.uint8, pin_memory=logits.is_cuda).numpy()
    target = torch.from_numpy(given)
    numbers = (size, row_step, mask_step, masks, in_height, in_width, height, width)
    scales = in_height / height, in_width / width
    compiled = _compiled.get(logits.device)
    if compiled is not None:
        compiled[programs, 1, 1](logits, target, *numbers, *scales)
    else:
        found = _pack[programs, 1, 1](logits, target, *numbers, *scales, num_warps=_WARPS)
        if found is not None:  # None in triton's interpreter
            _compiled[logits.device] = found
    return np.ndarray((rows, masks, height, pitch), np.uint8, given)


# Many parameters: a kernel takes pointers, strides and sizes one by one.
@triton.jit(
    do_not_specialize=["size", "row_step", "mask_step", "masks", "in_height", "in_width", "height", "width"],
    do_not_specialize_on_alignment=["logits"],  # masks may begin at any address; the target is aligned
)
def _pack(  # type: ignore[no-untyped-def]
    logits, target, size, row_step, mask_step, masks, in_height, in_width, height, width, scale_y, scale_x
):
    """Computes a block of output bytes. No argument is constexpr, so that one compiled kernel serves all sizes.

    The arithmetic is that of torch's ``interpolate(mode="bilinear", align_corners=False)``.
    """
    pitch = (width + 7) // 8
    place = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    kept = place < size
    line = place // pitch
    first = (place - line * pitch) * 8
    which = line // height
    y = line - which * height
    row = which // masks
    source = logits + row * row_step + (which - row * masks) * mask_step

    at_y = tl.maximum(scale_y * (y.to(tl.float32) + 0.5) - 0.5, 0.0)
    top = tl.minimum(at_y.to(tl.int32), in_height - 1)
    lower_share = at_y - top.to(tl.float32)
    upper_share = 1.0 - lower_share
    upper = source + top * in_width
    lower = source + tl.minimum(top + 1, in_height - 1) * in_width

    bits = tl.zeros([_BLOCK], tl.int32)
    for bit in tl.static_range(8):
        x = first + bit
        at_x = tl.maximum(scale_x * (x.to(tl.float32) + 0.5) - 0.5, 0.0)
        left = tl.minimum(at_x.to(tl.int32), in_width - 1)  # pixels beyond the width are computed and discarded
        right = tl.minimum(left + 1, in_width - 1)
        right_share = at_x - left.to(tl.float32)
        left_share = 1.0 - right_share
        above = left_share * tl.load(upper + left, mask=kept, other=0.0)
        above += right_share * tl.load(upper + right, mask=kept, other=0.0)
        below = left_share * tl.load(lower + left, mask=kept, other=0.0)
        below += right_share * tl.load(lower + right, mask=kept, other=0.0)
        inside = (upper_share * above + lower_share * below > 0) & (x < width)
        bits += inside.to(tl.int32) << (7 - bit)
    tl.store(target + place, bits.to(tl.uint8))
