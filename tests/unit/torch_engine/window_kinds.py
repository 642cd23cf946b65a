"""The kernel against torch's own steps for every kind of window, as JSON on stdout; run by test_windows.py.

It is a process of its own because triton decides at import whether kernels are interpreted: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch

from triton_sam.engines.torch.windows import attend_in_steps


class Kind(NamedTuple):
    """A grid [count,height,width] of ``heads * dim`` channels in windows."""

    name: str
    window: int
    pools: bool
    height: int
    width: int
    heads: int
    dim: int
    count: int = 1


KINDS = [
    Kind("4 packed", 4, False, 8, 16, 2, 56),
    Kind("4 pooled packed", 4, True, 8, 16, 2, 56, count=2),
    Kind("4 at an edge", 4, False, 6, 10, 1, 96),
    Kind("4 pooled at an edge", 4, True, 6, 10, 1, 56),
    Kind("4 too few to pack", 4, False, 4, 8, 1, 72),
    Kind("8", 8, False, 8, 8, 2, 56, count=2),
    Kind("8 pooled", 8, True, 16, 8, 1, 72),
    Kind("7 at an edge", 7, False, 8, 10, 1, 56, count=2),
    Kind("7 at the right edge only", 7, False, 7, 8, 1, 96),
    Kind("14", 14, False, 14, 14, 1, 96),
    Kind("14 at an edge", 14, False, 16, 16, 1, 56),
    Kind("14 pooled at an edge", 14, True, 16, 16, 1, 56),
    Kind("16", 16, False, 16, 16, 1, 72),
    Kind("16 pooled", 16, True, 16, 16, 1, 72),
    Kind("5, in no table", 5, False, 6, 6, 1, 16),
]
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def largest_error(kind: Kind, dtype: torch.dtype) -> float:
    from triton_sam.engines.torch import window_kernel

    generator = torch.Generator().manual_seed(0)
    channels = 3 * kind.heads * kind.dim
    qkv = torch.randn(kind.count, kind.height, kind.width, channels, generator=generator).to(dtype)
    bias = torch.randn(channels, generator=generator).to(dtype)
    sort = kind.window, kind.heads, kind.pools
    expected = attend_in_steps(qkv.float(), bias.float(), *sort)
    given = window_kernel.attend(qkv, bias, *sort)
    if given.shape != expected.shape or given.dtype != dtype:
        raise ValueError(f"{kind.name}: {given.shape} {given.dtype} instead of {expected.shape} {dtype}")
    return float((given.float() - expected).abs().max())


if __name__ == "__main__":
    torch.set_num_threads(1)
    errors = {kind.name: {name: largest_error(kind, dtype) for name, dtype in DTYPES.items()} for kind in KINDS}
    json.dump(errors, sys.stdout)
