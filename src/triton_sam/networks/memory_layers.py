"""The memory of SAM 2, 2.1 and 3 as plain torch layers, with the names and shapes of transformers' ``Sam2VideoModel``.

They hold weights and have, except for small parts, no ``forward``: :mod:`~triton_sam.networks.memory_steps` computes
with them, and the torch engine in its own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.networks.sam2_layers import ChannelNorm, FeedForward

_WIDTH = 256
_HIDDEN = 2048
_LAYERS = 4
#: Halvings of a mask on its way to the embedding's grid.
_HALVINGS = 4
_FUSIONS = 2
_EPS = 1e-6
#: Names of the modules and parameters that :func:`add_memory` adds, without what follows a dot.
MEMORY_NAMES = frozenset(
    {
        "memory_attention",
        "memory_encoder",
        "mask_downsample",
        "object_pointer_proj",
        "no_object_pointer",
        "memory_temporal_positional_encoding",
        "occlusion_spatial_embedding_parameter",
        "temporal_positional_encoding_projection_layer",
    }
)


def add_memory(network: Any, traits: MemoryTraits) -> None:
    """Adds the layers of a memory, whose weights are still to be loaded, to an image network."""
    network.memory_attention = _MemoryAttention(traits.width)
    network.memory_encoder = _MemoryEncoder(traits.width)
    network.mask_downsample = nn.Conv2d(1, 1, 4, 4)
    network.object_pointer_proj = FeedForward((_WIDTH, _WIDTH, _WIDTH), nn.ReLU(), depth=3)
    network.no_object_pointer = nn.Parameter(torch.zeros(1, _WIDTH))
    network.memory_temporal_positional_encoding = nn.Parameter(torch.zeros(traits.memories, 1, 1, traits.width))
    if traits.marks_occlusion:
        network.occlusion_spatial_embedding_parameter = nn.Parameter(torch.zeros(1, traits.width))
    if traits.pointer_positions:
        network.temporal_positional_encoding_projection_layer = nn.Linear(_WIDTH, traits.width)


# -- attention to memories -----------------------------------------------------------------------------------


class _MemoryAttention(nn.Module):
    def __init__(self, memory_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_MemoryAttentionLayer(memory_width) for _ in range(_LAYERS))
        self.layer_norm = nn.LayerNorm(_WIDTH)


class _MemoryAttentionLayer(nn.Module):
    """The image attends to itself, then to the memories; every part is normalised before, not after."""

    def __init__(self, memory_width: int) -> None:
        super().__init__()
        self.self_attn = _TurningAttention(_WIDTH)
        self.cross_attn_image = _TurningAttention(memory_width)
        self.linear1 = nn.Linear(_WIDTH, _HIDDEN)
        self.linear2 = nn.Linear(_HIDDEN, _WIDTH)
        self.layer_norm1 = nn.LayerNorm(_WIDTH)
        self.layer_norm2 = nn.LayerNorm(_WIDTH)
        self.layer_norm3 = nn.LayerNorm(_WIDTH)


class _TurningAttention(nn.Module):
    """One head with rotary positions."""

    def __init__(self, key_width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(_WIDTH, _WIDTH)
        self.k_proj = nn.Linear(key_width, _WIDTH)
        self.v_proj = nn.Linear(key_width, _WIDTH)
        self.o_proj = nn.Linear(_WIDTH, _WIDTH)


# -- the memory of a frame -----------------------------------------------------------------------------------


class _MemoryEncoder(nn.Module):
    def __init__(self, memory_width: int) -> None:
        super().__init__()
        self.mask_downsampler = _MaskDownsampler()
        self.feature_projection = nn.Conv2d(_WIDTH, _WIDTH, 1)
        self.memory_fuser = _Fuser()
        self.projection = nn.Conv2d(_WIDTH, memory_width, 1)

    def forward(self, features: Tensor, masks: Tensor) -> Tensor:
        """
        Args:
            features: [N,256,g,g], N is B or 1.
            masks: [B,1,16g,16g], between -10 and 10.

        Returns:
            [B,C,g,g] memories.
        """
        mixed = self.feature_projection(features) + self.mask_downsampler(masks)
        memories: Tensor = self.projection(self.memory_fuser(mixed))
        return memories


class _MaskDownsampler(nn.Module):
    """[B,1,16g,16g] -> [B,256,g,g]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Halving(4**number, 4 ** (number + 1)) for number in range(_HALVINGS))
        self.final_conv = nn.Conv2d(4**_HALVINGS, _WIDTH, 1)

    def forward(self, masks: Tensor) -> Tensor:
        state = masks
        for layer in self.layers:
            state = layer(state)
        downsampled: Tensor = self.final_conv(state)
        return downsampled


class _Halving(nn.Module):
    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(given, wanted, 3, 2, 1)
        self.layer_norm = ChannelNorm(wanted, eps=_EPS)

    def forward(self, state: Tensor) -> Tensor:
        return nn.functional.gelu(self.layer_norm(self.conv(state)))


class _Fuser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_FuserBlock() for _ in range(_FUSIONS))

    def forward(self, state: Tensor) -> Tensor:
        for layer in self.layers:
            state = layer(state)
        return state


class _FuserBlock(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise_conv = nn.Conv2d(_WIDTH, _WIDTH, 7, padding=3, groups=_WIDTH)
        self.layer_norm = ChannelNorm(_WIDTH, eps=_EPS)
        self.pointwise_conv1 = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.pointwise_conv2 = nn.Linear(4 * _WIDTH, _WIDTH)
        self.scale = nn.Parameter(torch.zeros(_WIDTH))

    def forward(self, state: Tensor) -> Tensor:
        """[B,256,g,g] -> the same shape."""
        # Channels stay last from the norm to the end: one transposition each way instead of two.
        last = self.depthwise_conv(state).permute(0, 2, 3, 1)
        norm = self.layer_norm
        last = nn.functional.layer_norm(last, (_WIDTH,), norm.weight, norm.bias, norm.eps)
        last = self.scale * self.pointwise_conv2(nn.functional.gelu(self.pointwise_conv1(last)))
        mixed: Tensor = state + last.permute(0, 3, 1, 2)
        return mixed
