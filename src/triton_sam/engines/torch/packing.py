"""Resizes logits to full-size masks in packed bits on the device, as ``core.masks.full_size`` does on the host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.base import ByteArray

_kernel: ModuleType | None
try:
    from triton_sam.engines.torch import pack_kernel as _kernel
except ImportError:  # triton comes with torch for GPUs only
    _kernel = None
log = logging.getLogger(__name__)

#: Pixels of all masks that are resized at a time: a gigabyte of logits at most.
_AT_A_TIME = 2**28
#: 0x8040201008040201 as a signed number.
_GATHER = 0x8040201008040201 - 2**64
#: Test images for the kernel: larger and smaller than the logits, with unused bits, and more than one block.
_TRIED = (Frame(203, 101, 64, ResizePolicy.SQUASH), Frame(21, 11, 64, ResizePolicy.SQUASH))
#: Bytes that may differ there: rounding may decide about a logit that is almost zero.
_FEW = 3


def kernel_packs(device: torch.device, *, columns: bool = False) -> bool:
    """Whether the kernel for rows or columns runs on a device and gives the same as torch's operators. Compiles it."""
    if device.type != "cuda" or _kernel is None:
        return False
    try:
        with torch.inference_mode():
            ramp = torch.linspace(-40, 40, 2 * 4 * 32 * 32, device=device).sin()
            logits = ramp.view(2, 4, 32, 32)[:, 1:]
            for frame in _TRIED:
                given = _kernel.pack(logits, frame.height, frame.width, columns=columns)
                # Its copy to the host waits for the kernel too.
                expected = packed_masks(logits.flatten(0, 1), frame, columns=columns).cpu().numpy()
                off = int((given.reshape(expected.shape) != expected).sum())
                if off > _FEW:
                    raise ValueError(f"{off} of {expected.size} bytes differ")
        return True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # triton and the compilers that it calls raise many different ones
        what = "RLEs are made of rows" if columns else "masks are packed without their kernel"
        log.warning("%s, and slower: %s", what, str(error).partition("\n")[0])
        return False


def packed_by_kernel(
    logits: Tensor, frame: Frame, take: Callable[[int], ByteArray | None] | None = None, *, columns: bool = False
) -> ByteArray | None:
    """[R,M,h,w] -> [R,M,H,ceil(W/8)] in host memory, valid after the stream is synchronised; see :func:`kernel_packs`.

    None if the kernel cannot do it: it resizes in one step, which is not enough for padded images.

    Args:
        take, columns: see :func:`pack_kernel.pack`.
    """
    length, across = (frame.width, frame.height) if columns else (frame.height, frame.width)
    size = logits.shape[0] * logits.shape[1] * length * -(-across // 8)
    if _kernel is None or frame.policy is ResizePolicy.PAD or size > _kernel.MOST_BYTES:
        return None
    packed: ByteArray = _kernel.pack(logits, frame.height, frame.width, take, columns=columns)
    return packed


def packed_masks(logits: Tensor, frame: Frame, *, columns: bool = False) -> Tensor:
    """[K,h,w] float32 of the model's square -> [K,H,ceil(W/8)] uint8, first pixel in the highest bit.

    Args:
        columns: pack the same pixels to [K,W,ceil(H/8)]; spare bits are like the column's last pixel.
    """
    each = max(1, _AT_A_TIME // (frame.width * frame.height))
    if len(logits) > each:
        parts = (logits[start : start + each] for start in range(0, len(logits), each))
        return torch.cat([packed_masks(part, frame, columns=columns) for part in parts])
    return (pack_columns if columns else pack_bits)(full_size_logits(logits, frame) > 0)


def full_size_logits(logits: Tensor, frame: Frame) -> Tensor:
    """[K,h,w] float32 of the model's square -> [K,H,W] in original pixels."""
    inner = logits[:, None]
    if frame.policy is ResizePolicy.PAD:
        # In two steps, as in the reference: to the model's square, whose padding is cropped, then to the image.
        square = functional.interpolate(inner, (frame.side, frame.side), mode="bilinear", align_corners=False)
        width, height = frame.resized
        inner = square[..., :height, :width]
    return functional.interpolate(inner, (frame.height, frame.width), mode="bilinear", align_corners=False)[:, 0]


def pack_bits(masks: Tensor) -> Tensor:
    """[K,H,W] bool -> [K,H,ceil(W/8)] uint8."""
    spare = -masks.shape[2] % 8
    if spare:
        masks = functional.pad(masks, (0, spare))
    # Eight bytes of 0 or 1 are one integer; the multiplication moves each of its bits to the highest byte, in order.
    eights = masks.contiguous().view(torch.int64)
    return ((eights * _GATHER) >> 56).to(torch.uint8)


def pack_columns(masks: Tensor) -> Tensor:
    """[K,H,W] bool -> [K,W,ceil(H/8)] uint8; spare bits are like the column's last pixel."""
    spare = -masks.shape[1] % 8
    if spare:
        masks = torch.cat([masks, masks[:, -1:].expand(-1, spare, -1)], dim=1)
    # Not `contiguous`, which leaves the strides of a single column.
    return pack_bits(masks.transpose(1, 2).clone(memory_format=torch.contiguous_format))
