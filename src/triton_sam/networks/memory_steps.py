"""What tracking computes with a network's memory layers, for any number of objects at once.

- :class:`ConditionOnMemory`: a frame's embedding, seen with what is remembered of each object.
- :class:`EncodeMemory`: what is remembered of each object in a frame.
- :func:`point_to_object`: the pointers of objects.

The definition is Meta's. It is computed in another order with the same result: values are projected after the attention
(memories have a quarter of the width), and the parts of the first layer that no memory reaches once for all objects.
Rows of fewer memories than others have empty slots. These get the keys of others, and their share of the attention is
then taken away: no mask is added to the scores.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.core.video.memory_traits import MemoryTraits

_WIDTH = 256
_BASE = 10_000.0
_EPS = 1e-6
#: How much of the positions is added to the image that attends.
_POSITION_SHARE = 0.1
#: Memories are made of masks between -10 and 10.
_MASK_SCALE, _MASK_SHIFT = 20.0, -10.0
#: Distances of empty slots are far below this.
_EMPTY_DISTANCE = -1e8


class Kernels(Protocol):
    """The two steps of an attention that are worth a kernel of their own."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[N,Q,C] queries that are scaled already, [B,K,C] keys, [B,K,V] values -> [B,Q,V]; N is B or 1."""

    def turn(self, channels: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Turns each channel of [R,n,C]'s first half with its partner in the second half by angles of [n,C/2]."""


class TorchKernels:
    """:class:`Kernels` of torch's own operators."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)

    def turn(self, channels: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        first, second = channels.chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, first * sines + second * cosines], dim=-1)


class ConditionOnMemory(nn.Module):
    """See the module."""

    no_memory: Tensor
    places: Tensor
    memory_places: Tensor
    cosines: Tensor
    sines: Tensor
    ages: Tensor
    frequencies: Tensor

    def __init__(self, network: Any, traits: MemoryTraits, grid: int, kernels: Kernels | None = None) -> None:
        """
        Args:
            network: with :func:`~triton_sam.networks.memory_layers.add_memory`'s layers and loaded weights.
            grid: side of the embedding, cells.
            kernels: torch's by default.
        """
        super().__init__()
        self._grid, self._width = grid, traits.width
        kernels = kernels or TorchKernels()
        self._layers = nn.ModuleList(_Layer(layer, kernels) for layer in network.memory_attention.layers)
        self._norm = network.memory_attention.layer_norm
        # SAM 2 has no positions of pointers in time.
        places = traits.pointer_positions
        self._pointer_places = network.temporal_positional_encoding_projection_layer if places else None
        device = network.no_memory_embedding.device
        cosines, sines = turns(grid)
        buffers = {
            "no_memory": network.no_memory_embedding.detach().reshape(1, _WIDTH, 1, 1),
            "places": _POSITION_SHARE * waves(grid, _WIDTH),
            "memory_places": waves(grid, traits.width),
            "cosines": cosines,
            "sines": sines,
            # Row 0 is that of conditioning frames, and row n that of n frames ago.
            "ages": network.memory_temporal_positional_encoding.detach().reshape(-1, traits.width).roll(1, 0),
            "frequencies": _BASE ** -(torch.arange(_WIDTH // 2) // 2 * 2 / (_WIDTH // 2)),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.to(device), persistent=False)

    def forward(
        self, image_embeddings: Tensor, memories: Tensor, memory_ages: Tensor, pointers: Tensor, distances: Tensor
    ) -> Tensor:
        """
        Args:
            image_embeddings: [N,256,g,g] with the no-memory embedding, as the encoder gives them; N is B or 1.
            memories: [B,S,C,g,g]; the first slot is never empty.
            memory_ages: [B,S] integers: 0 for conditioning frames, else how many frames ago; negative for empty slots.
            pointers: [B,P,256]; P may be 0.
            distances: [B,P] of the pointers' frames, as a share of the span; below -1e8 for empty slots.

        Returns:
            [B,256,g,g].
        """
        state = (image_embeddings - self.no_memory).flatten(2).transpose(1, 2) + self.places
        seen = self._seen(memories, memory_ages, pointers, distances)
        for layer in self._layers:
            state = layer(state, seen, self.cosines, self.sines)
        conditioned: Tensor = self._norm(state)
        return conditioned.transpose(1, 2).reshape(-1, _WIDTH, self._grid, self._grid)

    def _seen(self, memories: Tensor, ages: Tensor, pointers: Tensor, distances: Tensor) -> _Seen:
        rows, slots, width, cells = memories.shape[0], memories.shape[1], self._width, self._grid**2
        features = memories.flatten(3).transpose(2, 3)  # [B,S,cells,C]
        there = (ages >= 0).to(features.dtype)
        places = self.ages[ages.clamp(min=0)].unsqueeze(2) + self.memory_places  # [B,S,cells,C]
        # A pointer becomes as many cells as it is wider than a memory.
        parts = _WIDTH // width

        def for_parts(pointer: Tensor) -> Tensor:
            """[B,P,K] -> [B,P*parts,K]."""
            return pointer.unsqueeze(2).expand(-1, -1, parts, -1).flatten(1, 2)

        cut = pointers.reshape(rows, parts * pointers.shape[1], width)
        found = for_parts((distances > _EMPTY_DISTANCE).to(features.dtype).unsqueeze(2))
        keys = cut
        if self._pointer_places is not None:
            angles = distances.unsqueeze(-1) * self.frequencies
            keys = cut + for_parts(self._pointer_places(torch.cat([angles.sin(), angles.cos()], dim=-1)))
        tokens = features + places
        # An empty slot gets the keys of the first slot, and an empty pointer those of its first cell, which no position
        # turns: so they change no maximum of a softmax.
        tokens = torch.where(there[:, :, None, None] > 0, tokens, tokens[:, :1])
        keys = torch.where(found > 0, keys, tokens[:, 0, :1])
        spread = there.unsqueeze(2).expand(rows, slots, cells).flatten(1).unsqueeze(2)
        occupied = torch.cat([spread, found], dim=1)
        values = torch.cat([features.flatten(1, 2), cut], dim=1)
        # The last column counts how much of the attention went to occupied cells.
        return _Seen(tokens, keys, torch.cat([values * occupied, occupied], dim=2))


class _Seen(NamedTuple):
    """What a row attends to.

    Attributes:
        memory_keys: [B,S,cells,C] before the projection.
        pointer_keys: [B,P',C], likewise.
        values: [B,S*cells+P',C+1]: zeros in empty slots; the last column is 1, or 0 in empty slots.
    """

    memory_keys: Tensor
    pointer_keys: Tensor
    values: Tensor


class _Layer(nn.Module):
    """A layer with its projections prepared: queries are scaled, and pairs of channels that turn are in halves."""

    def __init__(self, layer: Any, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        own, cross = layer.self_attn, layer.cross_attn_image
        self._own_query, self._own_key = halves(own.q_proj, _WIDTH**-0.5), halves(own.k_proj)
        self._own_result = joined(own.v_proj, own.o_proj)
        self._query, self._key = halves(cross.q_proj, _WIDTH**-0.5), halves(cross.k_proj)
        self._result = joined(cross.v_proj, cross.o_proj)
        self._norms = nn.ModuleList([layer.layer_norm1, layer.layer_norm2, layer.layer_norm3])
        self._linear1, self._linear2 = layer.linear1, layer.linear2

    def forward(self, state: Tensor, seen: _Seen, cosines: Tensor, sines: Tensor) -> Tensor:
        """[N,n,256] -> [B,n,256]; N is B or 1."""
        attend, turn = self._kernels.attend, self._kernels.turn
        normed = self._norms[0](state)
        queries, keys = (turn(one(normed), cosines, sines) for one in (self._own_query, self._own_key))
        state = state + self._own_result(attend(queries, keys, normed))
        queries = turn(self._query(self._norms[1](state)), cosines, sines)
        rows = seen.memory_keys.shape[0]
        keys = turn(self._key(seen.memory_keys).flatten(0, 1), cosines, sines).reshape(rows, -1, _WIDTH)
        result = attend(queries, torch.cat([keys, self._key(seen.pointer_keys)], dim=1), seen.values)
        state = state + self._result(result[..., :-1] / result[..., -1:])
        found: Tensor = state + self._linear2(functional.relu(self._linear1(self._norms[2](state))))
        return found


class EncodeMemory(nn.Module):
    """See the module."""

    no_memory: Tensor
    occlusion: Tensor

    def __init__(self, network: Any, traits: MemoryTraits, side: int, grid: int) -> None:
        """
        Args:
            side, grid: sides of the model's input, pixels, and of the embedding, cells.
        """
        super().__init__()
        self._encoder = network.memory_encoder
        self._side, self._mask_side, self._after_sigmoid = side, 16 * grid, traits.mask_after_sigmoid
        occlusion = torch.zeros(1, traits.width)
        if traits.marks_occlusion:
            occlusion = network.occlusion_spatial_embedding_parameter.detach()
        no_memory = network.no_memory_embedding.detach().reshape(1, _WIDTH, 1, 1)
        self.register_buffer("no_memory", no_memory, persistent=False)
        self.register_buffer("occlusion", occlusion.to(no_memory.device).reshape(1, -1, 1, 1), persistent=False)

    def forward(self, image_embeddings: Tensor, masks: Tensor, hard: Tensor, object_scores: Tensor) -> Tensor:
        """
        Args:
            image_embeddings: [N,256,g,g] with the no-memory embedding; N is B or 1.
            masks: [B,1,h,w] logits of low resolution.
            hard: [B], 1 if only the sign of the logits counts, else 0.
            object_scores: [B,1], above 0 if the object is there.

        Returns:
            [B,C,g,g].
        """
        logits = _resized(masks, self._side)
        certain = (logits > 0).to(logits.dtype)
        shares = torch.where(hard.reshape(-1, 1, 1, 1) > 0.5, certain, logits.sigmoid())
        shares = shares * _MASK_SCALE + _MASK_SHIFT
        if self._after_sigmoid:
            shares = _resized(shares, self._mask_side)
        memories: Tensor = self._encoder(image_embeddings - self.no_memory, shares)
        away = (object_scores <= 0).to(memories.dtype).reshape(-1, 1, 1, 1)
        return memories + away * self.occlusion


def point_to_object(network: Any, tokens: Tensor, object_scores: Tensor) -> Tensor:
    """[B,256] output tokens of the chosen masks and [B,1] scores -> [B,256] object pointers."""
    pointers: Tensor = network.object_pointer_proj(tokens)
    return torch.where(object_scores > 0, pointers, network.no_object_pointer)


def _resized(masks: Tensor, side: int) -> Tensor:
    return functional.interpolate(masks, size=(side, side), mode="bilinear", align_corners=False)


# -- positions and prepared weights --------------------------------------------------------------------------


def waves(grid: int, width: int) -> Tensor:
    """[grid*grid,width] sines and cosines of the cells' places: of the rows first, then of the columns."""
    places = torch.arange(1, grid + 1) / (grid + _EPS) * (2 * math.pi)
    half = width // 2
    angles = places[:, None] / _BASE ** (torch.arange(half) // 2 * 2 / half)
    line = torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=2).flatten(1)  # [grid,half]
    rows, columns = line[:, None].expand(-1, grid, -1), line[None].expand(grid, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)


def turns(grid: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [grid*grid,128] of the angles by which pairs of channels are turned at each cell.

    The first half of the pairs follows the column, the other the row.
    """
    frequencies = _BASE ** -(torch.arange(0, _WIDTH, 4) / _WIDTH)
    angles = torch.arange(grid)[:, None] * frequencies  # [grid,64]
    rows, columns = angles[:, None].expand(-1, grid, -1), angles[None].expand(grid, -1, -1)
    both = torch.cat([columns, rows], dim=2).flatten(0, 1)
    return both.cos(), both.sin()


def halves(projection: nn.Linear, scale: float = 1.0) -> nn.Linear:
    """A projection to queries or keys with the first of each pair of channels in the first half, and scaled.

    A common order of the channels of queries and keys changes none of their products.
    """
    order = torch.arange(projection.out_features).reshape(-1, 2).T.flatten().to(projection.weight.device)
    return _linear(projection.weight[order] * scale, projection.bias[order] * scale)


def joined(values: nn.Linear, result: nn.Linear) -> nn.Linear:
    """Two projections in one: shares of an attention sum to 1, so values may be projected after it."""
    weight, bias = values.weight.double(), values.bias.double()
    after = result.weight.double()
    return _linear((after @ weight).to(result.weight.dtype), (after @ bias + result.bias).to(result.weight.dtype))


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made
