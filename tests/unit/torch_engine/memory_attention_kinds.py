"""The kernels for attention to memories against plain attention, as JSON on stdout; run by test_memory_attention.py.

It is a process of its own because triton decides at import whether kernels are interpreted: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from triton_sam.networks.memory_steps import turns, waves


class Kind(NamedTuple):
    """Rows of ``asked`` queries, and keys in two parts.

    Attributes:
        counts: (keys of the first part, keys of the second) of each row that are there; None if all are.
        second: where the second part begins.
        keys: number of places for keys.
    """

    name: str
    asked: int
    keys: int
    second: int
    counts: tuple[tuple[int, int], ...] | None
    width: int = 64
    splits: int = 1
    setup: tuple[int, int, int, int] = (32, 16, 4, 2)


KINDS = [
    Kind("all slots in use", 64, 80, 64, ((64, 16),)),
    Kind("empty slots", 64, 80, 64, ((32, 4), (16, 0))),
    Kind("odd sizes", 50, 91, 75, ((75, 13), (25, 1), (1, 16))),
    Kind("pointers only, and nothing", 33, 40, 32, ((0, 7), (0, 0))),
    Kind("in two shares", 50, 91, 75, ((75, 13), (25, 1)), splits=2),
    Kind("in more shares than blocks", 33, 60, 50, ((25, 5), (0, 0), (50, 0)), splits=8),
    Kind("wide values", 49, 49, 49, None, width=256),
    Kind("wide values in three shares", 49, 49, 49, None, width=256, splits=3),
    Kind("large blocks", 130, 140, 130, ((129, 9),), setup=(128, 64, 8, 3)),
]
DTYPES = {"float32": torch.float32, "float16": torch.float16}
GRID, SLOTS, PIECES, WIDTH = 5, 3, 8, 64


def attention_error(kind: Kind, dtype: torch.dtype) -> float:
    """What is not there has values of another size: it would show."""
    from triton_sam.engines.torch import tracking_kernel as kernel

    generator = torch.Generator().manual_seed(0)
    rows = len(kind.counts or "1")
    queries = (torch.randn(rows, kind.asked, 256, generator=generator) / 8).to(dtype)
    keys = torch.randn(rows, kind.keys, 256, generator=generator).to(dtype)
    values = torch.randn(rows, kind.keys, kind.width, generator=generator).to(dtype)
    counts = None if kind.counts is None else torch.tensor(kind.counts, dtype=torch.int32)
    expected = torch.zeros(rows, kind.asked, kind.width)
    for row in range(rows):
        first, later = (kind.keys, 0) if kind.counts is None else kind.counts[row]
        there = [*range(first), *range(kind.second, kind.second + later)]
        empty = sorted(set(range(kind.keys)) - set(there))
        if there:
            scores = queries[row].float() @ keys[row, there].float().T
            expected[row] = scores.softmax(dim=1) @ values[row, there].float()
        keys[row, empty], values[row, empty] = float("nan"), 1000.0
    setup = kernel.Setup(*kind.setup)
    given = kernel.attend_with(queries, keys, values, counts, kind.second, setup, kind.splits)
    return _largest(given, expected, dtype)


def key_error(dtype: torch.dtype) -> float:
    """Keys of memories of all ages, against their definition."""
    from triton_sam.engines.torch.tracking_attention import make_keys

    generator = torch.Generator().manual_seed(0)
    cells = GRID * GRID
    memories = torch.randn(2, SLOTS * cells + PIECES, WIDTH, generator=generator).to(dtype)
    ages = torch.tensor([[0, 6, 1], [2, -1, -1]], dtype=torch.int32)
    places, table = waves(GRID, WIDTH), torch.randn(7, WIDTH, generator=generator)
    weight = (torch.randn(256, WIDTH, generator=generator) / 8).to(dtype)
    bias = torch.randn(256, generator=generator).to(dtype)
    pieces = torch.randn(2, PIECES, 256, generator=generator).to(dtype)
    cosines, sines = turns(GRID)
    given = make_keys(memories, ages, places, table, weight, bias, torch.cat([cosines, sines], 1), pieces, True)
    off = _largest(given[:, SLOTS * cells :], pieces.float(), dtype)
    for row, slot in ((0, 0), (0, 1), (0, 2), (1, 0)):
        part = slice(slot * cells, (slot + 1) * cells)
        placed = (memories[row, part].float() + places + table[ages[row, slot]]).to(dtype).float()
        first, later = (placed @ weight.float().T + bias.float()).chunk(2, dim=1)
        expected = torch.cat([first * cosines - later * sines, first * sines + later * cosines], dim=1)
        off = max(off, _largest(given[row, part], expected, dtype))
    return off


def _largest(given: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    if given.shape != expected.shape or given.dtype != dtype:
        raise ValueError(f"{given.shape} {given.dtype} instead of {expected.shape} {dtype}")
    return float((given.float() - expected).abs().max())


if __name__ == "__main__":
    torch.set_num_threads(1)
    errors = {kind.name: {name: attention_error(kind, dtype) for name, dtype in DTYPES.items()} for kind in KINDS}
    errors["keys"] = {name: key_error(dtype) for name, dtype in DTYPES.items()}
    json.dump(errors, sys.stdout)
