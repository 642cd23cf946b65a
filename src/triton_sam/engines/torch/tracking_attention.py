"""Attention of frames to what is remembered of objects, for rows of any videos: each has its own image and memories.

The definition is that of :mod:`triton_sam.networks.memory_steps`, arranged for a GPU:

- Memories have fixed slots. Those in use come first, and kernels stop behind them: empty ones cost nothing.
- Values are raw memories, a quarter as wide as the image, and are projected after the attention.
- What is not multiplied by matrices stays in float32: the sum of all layers, norms, positions.
"""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.networks.memory_steps import halves, joined, turns, waves

_kernel: ModuleType | None
try:
    from triton_sam.engines.torch import tracking_kernel as _kernel
except ImportError:  # triton comes with torch for GPUs only
    _kernel = None

_WIDTH = 256
_SCALE = _WIDTH**-0.5
_POSITION_SHARE = 0.1
_BASE = 10_000.0
#: Columns of values, with the one that counts: kernels take multiples of it.
_ALIGNED = 8


class Attended(NamedTuple):
    """What B rows attend to, in fixed slots: S of memories and P of pointers.

    Attributes:
        cells: [B,S*n+P*4,C] in the attention's dtype: memories of n cells each, then pointers in pieces of C.
        ages: [B,S] int32: 0 for conditioning frames, else how many frames ago; negative for empty slots, which come
            last.
        pointers: [B,P,256] float32, empty ones last.
        distances: [B,P] float32, as a share of the span.
        counts: [B,2] int32: cells of memories, and pieces of pointers that are in use.
    """

    cells: Tensor
    ages: Tensor
    pointers: Tensor
    distances: Tensor
    counts: Tensor


class RowMemory(nn.Module):
    """The attention built from the weights of a network's memory layers, which it rearranges."""

    start: Tensor
    turned: Tensor
    places: Tensor
    ages: Tensor
    frequencies: Tensor

    def __init__(self, network: Any, traits: MemoryTraits, grid: int) -> None:
        """
        Args:
            network: with the layers of :mod:`triton_sam.networks.memory_layers`.
            grid: side of the embedding, cells.
        """
        super().__init__()
        self.by_kernel = False
        self.width = traits.width
        # Copies: the encoder may keep the network, in another dtype.
        attention = copy.deepcopy(network.memory_attention)
        self.layers = nn.ModuleList(_Layer(layer) for layer in attention.layers)
        self.norm = attention.layer_norm
        self.times: Any = None  # SAM 2 has no positions of pointers in time
        if traits.pointer_positions:
            self.times = copy.deepcopy(network.temporal_positional_encoding_projection_layer)
        ages = network.memory_temporal_positional_encoding.detach().float().reshape(-1, traits.width)
        tables = {
            # Embeddings come with the no-memory embedding.
            "start": _POSITION_SHARE * waves(grid, _WIDTH) - network.no_memory_embedding.detach().reshape(1, -1).cpu(),
            "turned": torch.cat(turns(grid), dim=1),
            "places": waves(grid, traits.width),
            # Row 0 is that of conditioning frames, and row n that of n frames ago.
            "ages": ages.roll(1, 0),
            "frequencies": _BASE ** -(torch.arange(_WIDTH // 2) // 2 * 2 / (_WIDTH // 2)),
        }
        for name, value in tables.items():
            setattr(self, name, nn.Buffer(value.float().contiguous().clone()))

    def cast(self, device: torch.device, dtype: torch.dtype) -> RowMemory:
        """Moves it to a device, and the matrices of its layers to a dtype."""
        self.to(device)
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)
        return self

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.layers[0].own.weight.dtype  # type: ignore[union-attr, assignment]
        return found

    def forward(self, image: Tensor, attended: Attended) -> Tensor:
        """[B,n,256] embeddings with the no-memory embedding -> the same shape in float32; B rows with their memories.

        Rows that attend to nothing get finite numbers.
        """
        pieces = attended.pointers.reshape(len(image), -1, self.width)
        if self.times is not None:
            angles = attended.distances[..., None] * self.frequencies
            times = self.times(torch.cat([angles.sin(), angles.cos()], dim=-1))
            pieces = pieces + times.repeat_interleave(_WIDTH // self.width, dim=1)
        state = image.float() + self.start
        for layer in self.layers:
            state = layer(state, pieces, attended, self)
        result: Tensor = self.norm(state)
        return result


class _Layer(nn.Module):
    """The image attends to itself, then to memories. Pairs of channels that turn are in halves."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own, cross = layer.self_attn, layer.cross_attn_image
        self.own = _stacked(halves(own.q_proj, _SCALE), halves(own.k_proj))
        self.own_result = joined(own.v_proj, own.o_proj)
        self.query, self.key = halves(cross.q_proj, _SCALE), halves(cross.k_proj)
        self.result = joined(cross.v_proj, cross.o_proj)
        self.norms = nn.ModuleList([layer.layer_norm1, layer.layer_norm2, layer.layer_norm3])
        self.wide, self.narrow = layer.linear1, layer.linear2

    def forward(self, state: Tensor, pieces: Tensor, attended: Attended, whole: RowMemory) -> Tensor:
        """[B,n,256] -> [B,n,256], float32; ``pieces`` [B,P*4,C] are pointers with their positions."""
        dtype, kernel, count = self.own.weight.dtype, whole.by_kernel, state.shape[1]
        normed = self.norms[0](state).to(dtype)
        both = _turn(self.own(normed).unflatten(-1, (2, -1)), whole.turned[:, None]).to(dtype)
        seen = attend(both[:, :, 0].contiguous(), both[:, :, 1].contiguous(), normed, None, count, kernel)
        state = state + self.own_result(seen)
        query = _turn(self.query(self.norms[1](state).to(dtype)), whole.turned).to(dtype)
        tables = whole.places, whole.ages, self.key.weight, self.key.bias, whole.turned
        keys = make_keys(attended.cells, attended.ages, *tables, self.key(pieces.to(dtype)), kernel)
        seen = attend(query, keys, attended.cells, attended.counts, attended.ages.shape[1] * count, kernel)
        state = state + self.result(seen)
        hidden = functional.relu(self.wide(self.norms[2](state).to(dtype)))
        result: Tensor = state + self.narrow(hidden)
        return result


def _turn(projected: Tensor, turned: Tensor) -> Tensor:
    """[...,D], and cosines and sines [...,D] of halves of the channels -> [...,D], float32."""
    first, later = projected.float().chunk(2, dim=-1)
    cosine, sine = turned.chunk(2, dim=-1)
    return torch.cat([first * cosine - later * sine, first * sine + later * cosine], dim=-1)


def _stacked(first: nn.Linear, later: nn.Linear) -> nn.Linear:
    """Two projections of the same input in one."""
    both = nn.Linear(first.in_features, 2 * first.out_features, device="meta")
    both.weight = nn.Parameter(torch.cat([first.weight, later.weight]), requires_grad=False)
    both.bias = nn.Parameter(torch.cat([first.bias, later.bias]), requires_grad=False)
    return both


# Custom operators, because compilers shall take them as they are.
# Many parameters: an operator of torch takes tensors and plain numbers only.
@torch.library.custom_op("triton_sam::memory_keys", mutates_args=())
def make_keys(
    cells: Tensor,
    ages: Tensor,
    places: Tensor,
    age_table: Tensor,
    weight: Tensor,
    bias: Tensor,
    turned: Tensor,
    pointer_keys: Tensor,
    by_kernel: bool,
) -> Tensor:
    """[B,S*n+P*4,D] keys of memories, which have positions and are turned, and of pointers, which are given.

    Keys of empty slots are any numbers. For the arguments see :class:`Attended`, :class:`RowMemory` and the kernel.
    """
    rows, slots = ages.shape
    count, width = places.shape
    if by_kernel and _kernel is not None:
        keys = cells.new_empty(rows, cells.shape[1], weight.shape[0])
        keys[:, slots * count :] = pointer_keys
        _kernel.make_keys(cells, ages, places, age_table, weight, bias, keys, turned)
        return keys
    memories = cells[:, : slots * count].reshape(rows, slots, count, width).float()
    given = (memories + places + age_table[ages.clamp(min=0)][:, :, None]).to(weight.dtype)
    made = _turn(functional.linear(given, weight, bias), turned).flatten(1, 2)
    return torch.cat([made.to(cells.dtype), pointer_keys], dim=1)


# Many parameters: the operator's.
@make_keys.register_fake
def _(
    cells: Tensor,
    ages: Tensor,
    places: Tensor,
    age_table: Tensor,
    weight: Tensor,
    bias: Tensor,
    turned: Tensor,
    pointer_keys: Tensor,
    by_kernel: bool,
) -> Tensor:
    return cells.new_empty(cells.shape[0], cells.shape[1], weight.shape[0])


@torch.library.custom_op("triton_sam::attend_memory", mutates_args=())
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor | None, second: int, by_kernel: bool
) -> Tensor:
    """[B,Q,D], [B,K,D], [B,K,V] -> [B,Q,V]. Queries are scaled; rows without any key give zeros.

    Args:
        counts: [B,2], how many keys of the first part, and of the one that begins at ``second``, are there; None: all.
    """
    if by_kernel and _kernel is not None:
        seen: Tensor = _kernel.attend(queries, keys, values, counts, second)
        return seen
    if counts is None:
        return functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)
    return _attend_counted(queries, keys, values, counts, second)


@attend.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor | None, second: int, by_kernel: bool) -> Tensor:
    return queries.new_empty(*queries.shape[:2], values.shape[2])


def _attend_counted(queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor, second: int) -> Tensor:
    """Without the host, which a CUDA graph does not wait for, and without a mask, which would be as large as scores.

    A key that is not there is replaced by the first one, which changes no maximum; its value is zero, and a column of
    the values counts how much of the attention went to keys that are there.
    """
    place = torch.arange(keys.shape[1], device=keys.device)
    there = torch.where(place < second, place < counts[:, :1], place - second < counts[:, 1:])[..., None]
    keys = torch.where(there, keys, keys[:, :1])
    extra = functional.pad(there.to(values.dtype), (0, _ALIGNED - 1))
    counted = torch.cat([torch.where(there, values, 0), extra], dim=2)
    seen = functional.scaled_dot_product_attention(queries[:, None], keys[:, None], counted[:, None], scale=1.0)[:, 0]
    share = seen[..., values.shape[2], None]
    # Not so much as one share: there is no key.
    return torch.where(share > 0, seen[..., : values.shape[2]] / share.clamp(min=1e-6), 0)
