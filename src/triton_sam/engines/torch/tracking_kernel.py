"""GPU kernels for attention to memories. Imports triton, so only tracking_attention.py may import it.

Queries and keys are 256 wide; values are raw memories, 64 wide, or for the image's attention to itself 256. One object
has few blocks of queries, so keys are split among programs too, and a second kernel joins their results. What is not
there costs nothing: programs stop at the number of keys that a row has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


class Setup(NamedTuple):
    """How attention is split into programs.

    Attributes:
        queries: of one program, a power of two.
        keys: that it loads at a time, likewise.
        warps: of 32 threads each.
        stages: loads under way at a time.
    """

    queries: int
    keys: int
    warps: int
    stages: int


#: By the width of the values, for so many bytes of shared memory in a processor: those of Hopper, Ampere, and others.
SETUPS: tuple[tuple[int, dict[int, Setup]], ...] = (
    (200 * 1024, {64: Setup(128, 64, 8, 3), 256: Setup(128, 64, 8, 2)}),
    (150 * 1024, {64: Setup(128, 64, 8, 2), 256: Setup(128, 32, 8, 2)}),
    (0, {}),
)
_SMALLEST = Setup(64, 32, 4, 2)
#: Cells of a memory whose keys one program makes.
_CELLS = 64
_MOST_SPLITS = 8
_WELL_USED = 0.9


def attend(queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor | None, second: int) -> Tensor:
    """Softmax attention of one head with keys in two parts.

    Args:
        queries: [B,Q,D], scaled.
        keys: [B,K,D], any numbers where there is no key; values: [B,K,V], finite there too.
        counts: [B,2] int32: how many keys of the first part, from 0 on, and of the second are there; None if all are.
        second: index of the second part's first key.

    Returns:
        [B,Q,V]; zeros for rows without any key.
    """
    rows, asked, _ = queries.shape
    setup = setup_for(values)
    splits = splits_for(rows * triton.cdiv(asked, setup.queries), facts(queries.device).processors)
    return attend_with(queries, keys, values, counts, second, setup, splits)


# Many parameters: those of the launch, which are tried out in a benchmark.
def attend_with(
    queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor | None, second: int, setup: Setup, splits: int
) -> Tensor:
    """:func:`attend` with the caller's setup; keys are split among so many programs."""
    rows, asked, wide = queries.shape
    width = values.shape[2]
    result = queries.new_empty(rows, asked, width, dtype=values.dtype)
    if splits == 1:
        parts, sums = result, result
    else:
        parts = queries.new_empty(splits, rows, asked, width, dtype=torch.float32)
        sums = queries.new_empty(splits, rows, asked, dtype=torch.float32)
    _attend[(triton.cdiv(asked, setup.queries), splits, rows)](
        TensorDescriptor.from_tensor(queries, [1, setup.queries, wide]),
        TensorDescriptor.from_tensor(keys, [1, setup.keys, wide]),
        TensorDescriptor.from_tensor(values, [1, setup.keys, width]),
        parts,
        sums,
        sums if counts is None else counts,
        asked,
        keys.shape[1],
        second,
        splits,
        counted=counts is not None,
        is_split=splits > 1,
        wide=wide,
        width=width,
        query_block=setup.queries,
        key_block=setup.keys,
        num_warps=setup.warps,
        num_stages=setup.stages,
    )
    if splits > 1:
        each = max(1, 2048 // width)
        _join[(triton.cdiv(rows * asked, each),)](
            parts, sums, result, rows * asked, splits, width=width, each=each, num_warps=4
        )
    return result


def setup_for(values: Tensor) -> Setup:
    """The best setup for values of a width on their device."""
    if values.dtype is torch.float32:
        return _SMALLEST
    memory = facts(values.device).shared_memory
    return next(setups for least, setups in SETUPS if memory >= least).get(values.shape[2], _SMALLEST)


def splits_for(programs: int, processors: int) -> int:
    """Among how many programs the keys are split, so that all processors have work to the end."""
    best, used = 1, 0.0
    for splits in range(1, _MOST_SPLITS + 1):
        count = programs * splits
        share = count / (-(-count // processors) * processors)
        if share >= _WELL_USED:
            return splits
        if share > used:
            best, used = splits, share
    return best


class DeviceFacts(NamedTuple):
    """A device's multiprocessors, and the shared memory of each for one program, bytes."""

    processors: int
    shared_memory: int


_facts: dict[torch.device, DeviceFacts] = {}


def facts(device: torch.device) -> DeviceFacts:
    """What launches depend on."""
    if device.type != "cuda":
        return DeviceFacts(2, 0)
    if device not in _facts:
        known: Any = torch.cuda.get_device_properties(device)
        _facts[device] = DeviceFacts(known.multi_processor_count, known.shared_memory_per_block_optin)
    return _facts[device]


# Many parameters: a kernel takes pointers and sizes one by one.
@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    parts,
    sums,
    counts,
    asked,
    all_keys,
    second,
    splits,
    counted: tl.constexpr,
    is_split: tl.constexpr,
    wide: tl.constexpr,
    width: tl.constexpr,
    query_block: tl.constexpr,
    key_block: tl.constexpr,
):
    """One block of queries of a row, with one share of the row's blocks of keys."""
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    if counted:
        first_count = tl.load(counts + row * 2)
        second_count = tl.load(counts + row * 2 + 1)
    else:
        first_count = all_keys
        second_count = 0
    whole_blocks = first_count // key_block
    first_blocks = (first_count + key_block - 1) // key_block
    all_blocks = first_blocks + (second_count + key_block - 1) // key_block
    share = (all_blocks + splits - 1) // splits
    begin = split * share
    end = tl.minimum(begin + share, all_blocks)

    near = tl.arange(0, key_block)
    query = queries.load([row, block * query_block, 0]).reshape(query_block, wide)
    highest = tl.full([query_block], float("-inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    seen = tl.zeros([query_block, width], tl.float32)
    for index in tl.range(begin, tl.minimum(end, whole_blocks)):
        key = keys.load([row, index * key_block, 0]).reshape(key_block, wide)
        value = values.load([row, index * key_block, 0]).reshape(key_block, width)
        highest, total, seen = _look(query, key, value, near >= 0, highest, total, seen, is_whole=True)
    # At most two blocks, the last ones of the parts.
    for index in tl.range(tl.maximum(begin, whole_blocks), end, num_stages=1):
        in_first = index < first_blocks
        start = tl.where(in_first, index, index - first_blocks) * key_block
        there = start + near < tl.where(in_first, first_count, second_count)
        other = start + tl.where(in_first, 0, second)
        key = keys.load([row, other, 0]).reshape(key_block, wide)
        value = values.load([row, other, 0]).reshape(key_block, width)
        highest, total, seen = _look(query, key, value, there, highest, total, seen, is_whole=False)
    found = total > 0
    seen = tl.where(found[:, None], seen / tl.where(found, total, 1.0)[:, None], 0.0)
    place = block * query_block + tl.arange(0, query_block)
    channel = tl.arange(0, width)
    real = place < asked
    line = (split * tl.num_programs(2) + row).to(tl.int64) * asked + place
    tl.store(parts + line[:, None] * width + channel[None, :], seen.to(parts.dtype.element_ty), mask=real[:, None])
    if is_split:
        tl.store(sums + line, tl.where(found, highest + tl.log2(tl.where(found, total, 1.0)), float("-inf")), mask=real)


# Many parameters: as above.
@triton.jit  # type: ignore[untyped-decorator]
def _look(  # type: ignore[no-untyped-def]
    query, key, value, there, highest, total, seen, is_whole: tl.constexpr
):
    """Adds a block of keys, one of which is there at least."""
    log2e: tl.constexpr = 1.4426950408889634
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if not is_whole:
        scores = tl.where(there[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * log2e)
    weights = tl.exp2(scores * log2e - higher[:, None])
    fade = tl.exp2(highest - higher)
    total = total * fade + tl.sum(weights, 1)
    seen = tl.dot(weights.to(value.dtype), value, seen * fade[:, None], input_precision="ieee")
    return higher, total, seen


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    parts, sums, result, lines, splits, width: tl.constexpr, each: tl.constexpr
):
    """Results of shares of the keys, weighted by the sums of their exponentials, whose logarithms are ``sums``."""
    line = tl.program_id(0).to(tl.int64) * each + tl.arange(0, each)
    channel = tl.arange(0, width)
    real = line < lines
    highest = tl.full([each], float("-inf"), tl.float32)
    for split in tl.range(splits):
        highest = tl.maximum(highest, tl.load(sums + split * lines + line, mask=real, other=float("-inf")))
    highest = tl.where(highest > float("-inf"), highest, 0.0)
    total = tl.zeros([each], tl.float32)
    seen = tl.zeros([each, width], tl.float32)
    for split in tl.range(splits):
        weight = tl.exp2(tl.load(sums + split * lines + line, mask=real, other=float("-inf")) - highest)
        place = (split * lines + line)[:, None] * width + channel[None, :]
        seen += weight[:, None] * tl.load(parts + place, mask=real[:, None], other=0.0)
        total += weight
    seen = seen / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(result + line[:, None] * width + channel[None, :], seen.to(result.dtype.element_ty), mask=real[:, None])


# Many parameters: tables of one layer's keys.
def make_keys(
    memories: Tensor,
    ages: Tensor,
    places: Tensor,
    age_table: Tensor,
    weight: Tensor,
    bias: Tensor,
    keys: Tensor,
    turns: Tensor,
) -> None:
    """Writes the keys of memories: projected with their positions and turned.

    Args:
        memories: [B,K,C], the first S*cells of K are memories.
        ages: [B,S] int32, negative for slots that are skipped.
        places: [cells,C] float32, and age_table: [A,C] float32, which are added.
        weight: [D,C] and bias [D] float32, the first of each turned pair in the first half.
        keys: [B,K,D], written.
        turns: [cells,D] float32, cosines of the pairs, then sines.
    """
    cells, width = places.shape
    rows, slots = ages.shape
    _make_keys[(triton.cdiv(cells, _CELLS), slots, rows)](
        memories,
        ages,
        places,
        age_table,
        weight,
        bias,
        keys,
        turns,
        memories.stride(0),
        memories.stride(1),
        keys.stride(0),
        keys.stride(1),
        slots,
        cells,
        width=width,
        half=weight.shape[0] // 2,
        each=_CELLS,
        num_warps=4,
    )


# Many parameters: as above.
@triton.jit  # type: ignore[untyped-decorator]
def _make_keys(  # type: ignore[no-untyped-def]
    memories,
    ages,
    places,
    age_table,
    weight,
    bias,
    keys,
    turns,
    memory_row,
    memory_step,
    key_row,
    key_step,
    slots,
    cells,
    width: tl.constexpr,
    half: tl.constexpr,
    each: tl.constexpr,
):
    """Keys of some cells of one memory."""
    slot = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    age = tl.load(ages + row * slots + slot)
    if age < 0:
        return
    cell = tl.program_id(0) * each + tl.arange(0, each)
    real = (cell < cells)[:, None]
    channel = tl.arange(0, width)
    pair = tl.arange(0, half)
    line = slot * cells + cell
    memory = tl.load(
        memories + row * memory_row + line[:, None] * memory_step + channel[None, :], mask=real, other=0.0
    ).to(tl.float32)
    memory += tl.load(places + cell[:, None] * width + channel[None, :], mask=real, other=0.0)
    memory += tl.load(age_table + age * width + channel)[None, :]
    given = memory.to(weight.dtype.element_ty)
    source = weight + pair[None, :] * width + channel[:, None]
    first = tl.dot(given, tl.load(source), input_precision="ieee") + tl.load(bias + pair)[None, :]
    later = tl.dot(given, tl.load(source + half * width), input_precision="ieee") + tl.load(bias + half + pair)[None, :]
    angle = turns + cell[:, None] * (2 * half) + pair[None, :]
    cosine = tl.load(angle, mask=real, other=0.0)
    sine = tl.load(angle + half, mask=real, other=0.0)
    target = keys + row * key_row + line[:, None] * key_step + pair[None, :]
    kind = keys.dtype.element_ty
    tl.store(target, (first * cosine - later * sine).to(kind), mask=real)
    tl.store(target + half, (first * sine + later * cosine).to(kind), mask=real)
