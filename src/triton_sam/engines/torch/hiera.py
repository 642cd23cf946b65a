"""SAM 2's image backbone on tokens with channels last, from the weights of transformers' module.

The same arithmetic with less overhead: the patch embedding is one matrix product instead of a convolution with three
channels, pooling is a maximum over four neighbours, and attention scores that transformers computes without using them
are not computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.linear_gelu import joins_gelu, linear_gelu
from triton_sam.engines.torch.windows import (
    WindowKind,
    attend,
    attend_windows,
    cudnn_attends,
    kernel_attends,
    pooled,
)

#: Matrix products need rows of a multiple of 16 bytes.
_ALIGN = 8


class HieraTrunk(nn.Module):
    """[B,3,S,S] -> the last tokens of each of four stages, [B,h,w,C], fine to coarse."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.patches = _Patches(backbone.patch_embed.projection)
        size = tuple(side // self.patches.step for side in backbone.config.image_size)
        self.positions = nn.Parameter(backbone._get_pos_embed(size).detach().clone(), requires_grad=False)
        self.blocks = nn.ModuleList(_Block(block) for block in backbone.blocks)
        self.ends = frozenset(backbone.stage_ends)

    def settle(self, device: torch.device, dtype: torch.dtype, *, kernels: bool = True) -> None:
        """Chooses the fastest implementations for a device; call it before anything is compiled.

        Args:
            kernels: also our own kernels, whose compilation takes seconds.
        """
        blocks = [block for block in self.modules() if isinstance(block, _Block)]
        kinds = dict.fromkeys(block.kind for block in blocks if block.window)
        by_kernel = kernels and kernel_attends(device, dtype, kinds)
        for block in blocks:
            block.by_kernel = by_kernel
            block.joins_gelu = joins_gelu(block.activation, device, dtype)
            block.by_cudnn = not block.window and cudnn_attends(device, dtype, block.kind.dim)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        tokens = self.patches(pixels) + self.positions
        stages = []
        for index, block in enumerate(self.blocks):
            tokens = block(tokens)
            if index in self.ends:
                stages.append(tokens)
        return stages


class _Patches(nn.Module):
    """A convolution with few channels and a large kernel, as one matrix product."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.kernel, self.step = convolution.kernel_size[0], convolution.stride[0]
        self.edge = convolution.padding[0]
        weight = convolution.weight.detach().flatten(1)
        self.spare = -weight.shape[1] % _ALIGN
        self.weight = nn.Parameter(functional.pad(weight, (0, self.spare)), requires_grad=False)
        self.bias = nn.Parameter(convolution.bias.detach().clone(), requires_grad=False)

    def forward(self, pixels: Tensor) -> Tensor:
        edged = functional.pad(pixels, (self.edge,) * 4)
        cut = edged.unfold(2, self.kernel, self.step).unfold(3, self.kernel, self.step)
        rows = cut.permute(0, 2, 3, 1, 4, 5).flatten(3)
        return functional.linear(functional.pad(rows, (0, self.spare)), self.weight, self.bias)


class _Block(nn.Module):
    """One block; the first of a stage halves the grid."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.layer_norm1, block.layer_norm2
        self.window = int(block.window_size)
        self.pools = block.query_stride is not None
        self.heads = int(block.attn.num_attention_heads)
        self.qkv, self.out = block.attn.qkv, block.attn.proj
        self.widen = block.proj if block.dim != block.dim_out else None
        self.mlp_in, self.mlp_out = block.mlp.proj_in, block.mlp.proj_out
        self.activation = block.mlp.activation
        self.by_kernel = self.by_cudnn = self.joins_gelu = False

    @property
    def kind(self) -> WindowKind:
        return WindowKind(self.window, self.heads, self.out.in_features // self.heads, self.pools)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        kept = tokens if self.widen is None else pooled(self.widen(normed))
        qkv = self.qkv(normed)
        if self.window:
            seen = attend_windows(qkv, self.qkv.bias, self.window, self.heads, self.pools, self.by_kernel)
        else:
            seen = attend(qkv, self.heads, self.pools, self.by_cudnn)
        tokens = kept + self.out(seen)
        normed = self.norm2(tokens)
        if self.joins_gelu:
            hidden = linear_gelu(normed, self.mlp_in.weight, self.mlp_in.bias)
        else:
            hidden = self.activation(self.mlp_in(normed))
        result: Tensor = tokens + self.mlp_out(hidden)
        return result
