"""A GPU kernel for window attention in place. Imports triton, so only windows.py may import it.

Nothing is partitioned, padded or reassembled: a program reads the keys and values of its window from the grid, and
writes to the grid. Flash attention would pad a window of 16, 49, 64 or 196 tokens to a multiple of 128.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton


class Setup(NamedTuple):
    """How one kind of window is split into programs.

    Attributes:
        pack: windows side by side in one program; scores between them are computed and discarded.
        queries: block size, a power of two, 16 or more.
        keys: block size, likewise; a window with more keys takes several steps.
        warps: of 32 threads each.
        stages: blocks of keys that are loaded at a time, if there are several.
    """

    pack: int
    queries: int
    keys: int
    warps: int
    stages: int


#: By the window's side and whether queries are pooled.
SETUPS = {
    (4, False): Setup(4, 64, 64, 4, 1),
    (4, True): Setup(4, 16, 64, 2, 1),
    (7, False): Setup(1, 64, 64, 4, 1),
    (8, False): Setup(1, 64, 64, 4, 1),
    (8, True): Setup(1, 16, 64, 2, 1),
    (14, False): Setup(1, 64, 64, 4, 2),
    (14, True): Setup(1, 64, 64, 4, 2),
}
_OTHERS = Setup(1, 64, 64, 4, 2)
_POOL = 2
_SMALLEST = 16  # minimum matrix side of tensor cores


def attend(qkv: Tensor, bias: Tensor, window: int, heads: int, pools: bool) -> Tensor:
    """[B,H,W,3*C], [3*C] -> [B,H,W,C], or [B,H/2,W/2,C] if queries are pooled; see windows.py."""
    setup = SETUPS.get((window, pools), _OTHERS)
    height, width = qkv.shape[1:3]
    if height % window or width % (setup.pack * window):
        setup = setup._replace(pack=1)
    # The setup is passed as integers: torch keys compiled graphs by arguments, not by this table.
    result: Tensor = attend_with(qkv, bias, window, heads, pools, *setup)
    return result


# Many parameters: an operator of torch takes tensors and plain numbers only.
@triton_op("triton_sam::attend_windows", mutates_args={})
def attend_with(
    qkv: Tensor,
    bias: Tensor,
    window: int,
    heads: int,
    pools: bool,
    pack: int,
    queries: int,
    keys: int,
    warps: int,
    stages: int,
) -> Tensor:
    """:func:`attend` with the caller's :class:`Setup`; with ``pack`` > 1 windows must cover the grid exactly.

    Ten parameters, because a torch operator takes only tensors and plain numbers.
    """
    count, height, width, channels = qkv.shape[0], qkv.shape[1], qkv.shape[2], qkv.shape[3] // 3
    pool = _POOL if pools else 1
    dim = channels // heads
    qkv = qkv.contiguous()
    result = qkv.new_empty(count, height // pool, width // pool, channels)
    regions = -(-height // window) * -(-width // (pack * window))
    blocks = -(-(window * window * pack) // (pool * pool * queries))
    wrap_triton(_attend)[(count * regions * heads * blocks,)](
        qkv,
        bias,
        result,
        height=height,
        width=width,
        heads=heads,
        dim=dim,
        dim_block=max(_SMALLEST, 1 << (dim - 1).bit_length()),
        window=window,
        pack=pack,
        pool=pool,
        scale=math.log2(math.e) / math.sqrt(dim),
        query_block=queries,
        key_block=keys,
        num_warps=warps,
        num_stages=stages,
    )
    return result


# Many parameters, and long: a kernel takes pointers, strides and sizes one by one, and is one function for the GPU.
@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv,
    bias,
    result,
    height: tl.constexpr,
    width: tl.constexpr,
    heads: tl.constexpr,
    dim: tl.constexpr,
    dim_block: tl.constexpr,
    window: tl.constexpr,
    pack: tl.constexpr,
    pool: tl.constexpr,
    scale: tl.constexpr,
    query_block: tl.constexpr,
    key_block: tl.constexpr,
):
    """One block of queries of one head, in ``pack`` windows side by side: a region of the grid.

    Cells beyond the right and lower edge all have the same key and value, those of the bias. They are one key here,
    with which the sums begin, weighted by the number of such cells.
    """
    channels: tl.constexpr = heads * dim
    step: tl.constexpr = 3 * channels  # from one cell to the next
    wide: tl.constexpr = pack * window
    keys: tl.constexpr = window * wide
    asked_wide: tl.constexpr = wide // pool
    asked: tl.constexpr = keys // (pool * pool)
    blocks: tl.constexpr = (asked + query_block - 1) // query_block
    across: tl.constexpr = (width + wide - 1) // wide
    down: tl.constexpr = (height + window - 1) // window
    edged: tl.constexpr = (height % window + width % wide) > 0

    program = tl.program_id(0)
    block = program % blocks
    head = program // blocks % heads  # heads next to each other: their channels share cache lines
    region = program // (blocks * heads)
    top = region // across % down * window
    left = region % across * wide
    image = (region // (across * down)).to(tl.int64)
    if edged and top // pool + block * query_block // asked_wide >= height // pool:
        return  # all of these queries are beyond the lower edge

    column = tl.arange(0, dim_block)
    real = column < dim
    source = qkv + image * (height * width * step) + head * dim
    place = block * query_block + tl.arange(0, query_block)
    y = top // pool + place // asked_wide
    x = left // pool + place % asked_wide
    kept = ((place < asked) & (y < height // pool) & (x < width // pool))[:, None] & real[None, :]
    cells = source + ((y * width + x) * (pool * step))[:, None] + column[None, :]
    query = tl.load(cells, mask=kept, other=0.0)
    if pool == 2:
        query = tl.maximum(query, tl.load(cells + step, mask=kept, other=0.0), tl.PropagateNan.ALL)
        below = tl.load(cells + width * step, mask=kept, other=0.0)
        below = tl.maximum(below, tl.load(cells + (width + 1) * step, mask=kept, other=0.0), tl.PropagateNan.ALL)
        # The maximum of two bfloat16 has the type float32.
        query = tl.maximum(query, below, tl.PropagateNan.ALL).to(qkv.dtype.element_ty)

    highest = tl.full([query_block], float("-inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    seen = tl.zeros([query_block, dim_block], tl.float32)
    if edged:
        inside = tl.minimum(window, height - top) * tl.minimum(wide, width - left)
        beyond = (keys - inside).to(tl.float32)
        empty = bias + channels + head * dim + column
        key_beyond = tl.load(empty, mask=real, other=0.0).to(tl.float32)
        value_beyond = tl.load(empty + channels, mask=real, other=0.0).to(tl.float32)
        score = tl.sum(query.to(tl.float32) * key_beyond[None, :], 1) * scale
        highest = tl.where(beyond > 0, score, highest)
        total += beyond
        seen += beyond * value_beyond[None, :]

    # With a constant bound the compiler removes a loop of one iteration.
    last = tl.minimum(window, height - top) * wide if edged and keys > key_block else keys
    for start in tl.range(0, last, key_block):
        other = start + tl.arange(0, key_block)
        other_y = top + other // wide
        other_x = left + other % wide
        there = (other < keys) & (other_y < height) & (other_x < width)
        others = source + channels + ((other_y * width + other_x) * step)[:, None] + column[None, :]
        key = tl.load(others, mask=there[:, None] & real[None, :], other=0.0)
        value = tl.load(others + channels, mask=there[:, None] & real[None, :], other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        together = there[None, :]
        if pack > 1:
            mine = place % asked_wide // (window // pool)
            together = together & (mine[:, None] == (other % wide // window)[None, :])
        scores = tl.where(together, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        fade = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * fade + tl.sum(weights, 1)
        seen = tl.dot(weights.to(value.dtype), value, seen * fade[:, None], input_precision="ieee")
        highest = higher

    target = result + image * (height // pool * (width // pool) * channels) + head * dim
    written = target + ((y * (width // pool) + x) * channels)[:, None] + column[None, :]
    tl.store(written, (seen / total[:, None]).to(result.dtype.element_ty), mask=kept)
