"""SAM 2's image backbone on tokens with channels last, from the weights of transformers' module.

The same steps with less around them: patches are cut out as rows of one matrix product instead of a convolution with
three channels; pooling is a maximum over four neighbours in place; the attention scores that transformers computes and
does not use are not computed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

_POOL = 2
#: Matrix products want rows of a multiple of 16 bytes.
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

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        kept = tokens if self.widen is None else _pooled(self.widen(normed))
        height, width = kept.shape[1:3]
        if not self.window:
            looked = self._attend(normed)
        else:
            # Cells beyond the edge are zeros here and take part as keys, as they did in training.
            looked = self._attend(_windows(normed, self.window))
            looked = _unwindowed(looked, height, width)
        tokens = kept + looked
        hidden = self.activation(self.mlp_in(self.norm2(tokens)))
        result: Tensor = tokens + self.mlp_out(hidden)
        return result

    def _attend(self, windows: Tensor) -> Tensor:
        """[B,h,w,C] -> [B,h',w',D], each of B for itself."""
        rows, height, width, _ = windows.shape
        qkv = self.qkv(windows)
        query, key, value = qkv.chunk(3, dim=-1)
        if self.pools:
            query = _pooled(query)
            height, width = query.shape[1:3]
        parts = (part.reshape(rows, -1, self.heads, part.shape[-1] // self.heads) for part in (query, key, value))
        seen = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        result: Tensor = self.out(seen.transpose(1, 2).reshape(rows, height, width, -1))
        return result


def _pooled(tokens: Tensor) -> Tensor:
    """[B,h,w,C] -> [B,h/2,w/2,C]: the largest of four."""
    rows, height, width, channels = tokens.shape
    return tokens.view(rows, height // _POOL, _POOL, width // _POOL, _POOL, channels).amax(dim=(2, 4))


def _windows(tokens: Tensor, window: int) -> Tensor:
    """[B,h,w,C] -> [B*n,window,window,C], zeros beyond the right and lower edge."""
    rows, height, width, channels = tokens.shape
    below, right = -height % window, -width % window
    if below or right:
        tokens = functional.pad(tokens, (0, 0, 0, right, 0, below))
    down, across = (height + below) // window, (width + right) // window
    split = tokens.view(rows, down, window, across, window, channels).transpose(2, 3)
    return split.reshape(-1, window, window, channels)


def _unwindowed(windows: Tensor, height: int, width: int) -> Tensor:
    """The inverse of :func:`_windows`, for windows that may have been pooled; [B,height,width,C]."""
    window, channels = windows.shape[1], windows.shape[3]
    down, across = -(-height // window), -(-width // window)
    joined = windows.view(-1, down, across, window, window, channels).transpose(2, 3)
    whole = joined.reshape(-1, down * window, across * window, channels)
    return whole[:, :height, :width]
