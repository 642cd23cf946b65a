"""Areas and boxes of full-size masks on the device, without a pixel that leaves it."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch.packing import full_size_logits

#: None without triton.
kernel: ModuleType | None
try:
    from triton_sam.engines.torch import measure_kernel as kernel
except ImportError:  # triton comes with torch for GPUs only
    kernel = None

#: Pixels of all masks that are resized at a time by torch's operators: half a gigabyte of logits at most.
_AT_A_TIME = 2**27


class Limits(NamedTuple):
    """Which masks are measured, and where areas are counted.

    Attributes:
        least: only masks with a higher score are measured.
        low, middle, high: thresholds; ``middle`` is the mask's own.
    """

    least: float
    low: float
    middle: float
    high: float


def may_use_kernel(frame: Frame) -> bool:
    """Whether the kernels can resize this way: in one step."""
    return kernel is not None and frame.policy is not ResizePolicy.PAD


def measured(logits: Tensor, scores: Tensor, frame: Frame, limits: Limits, *, by_kernel: bool) -> Tensor:
    """[R,M,h,w] logits in any dtype and [R,M] scores, float32 -> [R*M,7] int32, on the device.

    The numbers of a mask: pixels above ``low``, ``middle`` and ``high``; then width - x0, height - y0, x1 + 1 and
    y1 + 1, where x0, y0, x1, y1 are its first and last column and row. All are 0 for an empty mask, and for one whose
    score is too low.

    Args:
        by_kernel: see :mod:`.measure_trial`.
    """
    if by_kernel and may_use_kernel(frame):
        assert kernel is not None
        size = frame.height, frame.width
        found: Tensor = kernel.measure(logits, scores, limits.least, limits[1:], size)
        return found
    flat = logits.flatten(0, 1)
    each = max(1, _AT_A_TIME // (frame.width * frame.height))
    parts = [_measured(some, frame, limits) for some in torch.split(flat, each)]
    # Not by indexing, which would wait for the device.
    return torch.cat(parts) * (scores > limits.least).reshape(-1, 1)


def _measured(logits: Tensor, frame: Frame, limits: Limits) -> Tensor:
    full = full_size_logits(logits.float(), frame)
    inside = full > limits.middle
    counts = [part.sum((1, 2)) for part in (full > limits.low, inside, full > limits.high)]
    extremes = []
    for end in (False, True):
        for used in (inside.any(1), inside.any(2)):
            places = torch.arange(1, used.shape[1] + 1, device=used.device)
            extremes.append((used * (places if end else places.flip(0))).amax(1))
    return torch.stack([*counts, *extremes], dim=1).to(torch.int32)
