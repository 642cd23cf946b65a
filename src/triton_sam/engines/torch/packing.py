"""Low-resolution logits -> full-size masks in packed bits, on the device; twin of ``triton_sam.masks.full_size``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from triton_sam.geometry import Frame, ResizePolicy

#: Pixels of all masks that are enlarged at a time: a gigabyte of logits at most.
_AT_A_TIME = 2**28
#: 0x8040201008040201 as a signed number.
_GATHER = 0x8040201008040201 - 2**64


def packed_masks(logits: Tensor, frame: Frame) -> Tensor:
    """[K,h,w] float32 of the model's square -> [K,H,ceil(W/8)] uint8, first pixel in the highest bit."""
    each = max(1, _AT_A_TIME // (frame.width * frame.height))
    if len(logits) > each:
        parts = (logits[start : start + each] for start in range(0, len(logits), each))
        return torch.cat([packed_masks(part, frame) for part in parts])
    inner = logits[:, None]
    if frame.policy is ResizePolicy.PAD:
        # In two steps, as the reference does it: to the model's square, whose padding is cut off, then to the image.
        square = functional.interpolate(inner, (frame.side, frame.side), mode="bilinear", align_corners=False)
        width, height = frame.resized
        inner = square[..., :height, :width]
    full = functional.interpolate(inner, (frame.height, frame.width), mode="bilinear", align_corners=False)[:, 0] > 0
    return pack_bits(full)


def pack_bits(masks: Tensor) -> Tensor:
    """[K,H,W] bool -> [K,H,ceil(W/8)] uint8."""
    spare = -masks.shape[2] % 8
    if spare:
        masks = functional.pad(masks, (0, spare))
    # Eight bytes of 0 or 1 are one number; multiplied, each of its bits arrives in the highest byte, at its own place.
    eights = masks.contiguous().view(torch.int64)
    return ((eights * _GATHER) >> 56).to(torch.uint8)
