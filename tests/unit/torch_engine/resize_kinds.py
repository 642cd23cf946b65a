"""The kernel that resizes pictures against torch's own steps, as JSON on stdout; run by test_resizing.py.

It is a process of its own because triton decides at import whether kernels are interpreted: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import torch

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch import resizing


class Kind(NamedTuple):
    """A picture, and the square that it is resized to; ``planar`` pictures lie as the GPU's decoder leaves them."""

    name: str
    width: int
    height: int
    side: int
    policy: ResizePolicy
    planar: bool = False
    dtype: torch.dtype = torch.float32


KINDS = [
    Kind("photograph", 96, 64, 64, ResizePolicy.SQUASH),
    Kind("photograph, planar, half precision", 96, 64, 64, ResizePolicy.SQUASH, True, torch.float16),
    Kind("photograph, padded", 96, 64, 64, ResizePolicy.PAD, True),
    Kind("larger in both axes", 40, 30, 64, ResizePolicy.SQUASH),
    Kind("larger, padded, on its side", 30, 40, 64, ResizePolicy.PAD, True, torch.bfloat16),
    Kind("vertical axis first", 47, 131, 64, ResizePolicy.SQUASH),
    Kind("vertical axis first, planar", 20, 131, 40, ResizePolicy.SQUASH, True),
    Kind("much smaller", 250, 190, 48, ResizePolicy.SQUASH, True),
    Kind("as it is", 64, 64, 64, ResizePolicy.SQUASH),
    Kind("as it is, padded", 64, 21, 64, ResizePolicy.PAD),
    Kind("a few pixels", 1, 5, 33, ResizePolicy.SQUASH),
    Kind("a few pixels, padded", 1, 5, 33, ResizePolicy.PAD),
]


def picture_of(kind: Kind) -> torch.Tensor:
    """[3,H,W] uint8 of noise."""
    generator = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (kind.height, kind.width, 3), dtype=torch.uint8, generator=generator)
    picture = picture.permute(2, 0, 1)
    return picture.contiguous() if kind.planar else picture


def steps_off(kind: Kind, kernel: Any) -> tuple[float, float]:
    """The largest difference in steps of 1/255, and the share of values that differ."""
    frame = Frame(kind.width, kind.height, kind.side, kind.policy)
    normal = torch.tensor([[1 / 64, 1 / 32, 1 / 50], [2.0, 1.5, 0.5]])
    picture = picture_of(kind)
    expected = resizing.resized(picture, frame, normal, kind.dtype)
    width, height = frame.resized
    first = resizing._rows_first(picture, frame)
    given = kernel.resize(picture, height, width, kind.side, normal, kind.dtype, rows_first=first)
    if given.shape != expected.shape or given.dtype != expected.dtype:
        raise ValueError(f"{kind.name}: {given.shape} {given.dtype} instead of {expected.shape} {expected.dtype}")
    off = (given.float() - expected.float()).abs() / normal[0, :, None, None]
    return float(off.max()), float((off > 0).float().mean())


if __name__ == "__main__":
    from triton_sam.engines.torch import resize_kernel

    torch.set_num_threads(1)
    json.dump({kind.name: steps_off(kind, resize_kernel) for kind in KINDS}, sys.stdout)
