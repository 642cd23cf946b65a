"""The kernels that measure and trace masks against torch's own steps, as JSON on stdout; run by test_measuring.py.

It is a process of its own because triton decides at import whether kernels are interpreted: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch.measuring import Limits, measured
from triton_sam.engines.torch.tracing import changes


class Kind(NamedTuple):
    """Logits [rows,masks,side,side] of a crop of ``size``, which lies at ``corner`` of an image of ``whole``; xy."""

    name: str
    rows: int
    masks: int
    side: int
    size: tuple[int, int]
    corner: tuple[int, int] = (0, 0)
    whole: tuple[int, int] | None = None
    dtype: torch.dtype = torch.float32
    threshold: float = 0.0


KINDS = [
    Kind("larger, several blocks", 1, 3, 16, (150, 21)),
    Kind("smaller", 2, 3, 32, (20, 11)),
    Kind("as it is", 1, 1, 24, (24, 24)),
    Kind("one pixel", 1, 3, 16, (1, 1)),
    Kind("of one pixel", 2, 1, 1, (13, 9)),
    Kind("half precision", 2, 3, 16, (37, 29), dtype=torch.float16),
    Kind("another threshold", 1, 3, 16, (37, 29), threshold=0.4),
    Kind("a crop in the middle", 1, 3, 16, (37, 29), (5, 3), (51, 40)),
    Kind("a crop in the corner", 1, 3, 16, (37, 29), (14, 11), (51, 40)),
]


def numbers_off(kind: Kind) -> tuple[int, int]:
    """Numbers and changes that differ. Masks lie as the decoder leaves them, with one more before those of a row."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(kind.rows, kind.masks + 1, kind.side, kind.side, generator=generator).to(kind.dtype)[:, 1:]
    scores = torch.rand(kind.rows, kind.masks + 2, generator=generator)[:, 1:-1]
    frame = Frame(*kind.size, 64, ResizePolicy.SQUASH)
    limits = Limits(0.3, kind.threshold - 0.5, kind.threshold, kind.threshold + 0.5)
    given, expected = (measured(logits, scores, frame, limits, by_kernel=each) for each in (True, False))
    (x, y), whole = kind.corner, kind.whole or kind.size
    crop = x, y, x + kind.size[0], y + kind.size[1]
    flat = logits.flatten(0, 1)
    traced, known = (changes(flat, kind.threshold, frame, crop, whole, by_kernel=each) for each in (True, False))
    for one, other in ((given, expected), (traced, known)):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ValueError(f"{kind.name}: {one.shape} {one.dtype} instead of {other.shape} {other.dtype}")
    if not expected.any() or not known[:, :-1].any():
        raise ValueError(f"{kind.name} shows nothing")
    return int((given != expected).sum()), int((traced != known).sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump({kind.name: numbers_off(kind) for kind in KINDS}, sys.stdout)
