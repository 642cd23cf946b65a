"""The kernel that packs masks against torch's own steps, as JSON on stdout; run by test_packing.py.

It is a process of its own because triton decides at import whether kernels are interpreted: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch.packing import packed_masks


class Kind(NamedTuple):
    """Logits [rows,masks,side,side], and the image that they are enlarged to."""

    name: str
    rows: int
    masks: int
    side: int
    width: int
    height: int


KINDS = [
    Kind("larger, bits to spare", 1, 1, 16, 37, 29),
    Kind("larger, whole bytes, several blocks", 1, 1, 16, 96, 64),
    Kind("smaller", 1, 3, 64, 20, 11),
    Kind("wider and lower", 2, 1, 32, 203, 7),
    Kind("narrower and higher", 1, 1, 32, 5, 300),
    Kind("as it is", 1, 1, 24, 24, 24),
    Kind("one pixel", 1, 3, 16, 1, 1),
    Kind("of one pixel", 1, 1, 1, 13, 9),
    Kind("several masks of several rows", 3, 3, 16, 41, 30),
    Kind("several blocks of columns", 1, 2, 16, 35, 270),
]


def bytes_off(kind: Kind, *, columns: bool) -> int:
    """Bytes that differ; masks lie as the decoder leaves them, with one more before those of each row."""
    from triton_sam.engines.torch import pack_kernel

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(kind.rows, kind.masks + 1, kind.side, kind.side, generator=generator)[:, 1:]
    frame = Frame(kind.width, kind.height, 64, ResizePolicy.SQUASH)
    expected = packed_masks(logits.flatten(0, 1), frame, columns=columns).numpy()
    given = pack_kernel.pack(logits, kind.height, kind.width, columns=columns)
    shape = kind.rows, kind.masks, *expected.shape[1:]
    if given.shape != shape or given.dtype != expected.dtype:
        raise ValueError(f"{kind.name}: {given.shape} {given.dtype} instead of {shape} {expected.dtype}")
    return int((given.reshape(expected.shape) != expected).sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    forms = {"rows": False, "columns": True}
    json.dump(
        {form: {kind.name: bytes_off(kind, columns=flag) for kind in KINDS} for form, flag in forms.items()}, sys.stdout
    )
