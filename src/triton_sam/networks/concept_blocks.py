"""Parts of :mod:`~triton_sam.networks.concept_layers`: attention, layers of the transformers, positions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Added to the scores of what may not be seen. In half precision too it leaves exactly no weight.
BLOCKED = -1e4
_BASE = 10_000.0
_EDGE = 1e-3


class Attention(nn.Module):
    """Attention with ``heads`` heads."""

    def __init__(self, width: int, heads: int, *, output: str = "o_proj") -> None:
        super().__init__()
        self._heads, self._output = heads, output
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.add_module(output, nn.Linear(width, width))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """
        Args:
            query: [B,n,C]; ``key`` and ``value`` are [M,m,C], M is B or 1.
            bias: added to the scores, broadcast to [B,heads,n,m].
        """
        heads = self._split(self.q_proj(query)), self._split(self.k_proj(key)), self._split(self.v_proj(value))
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=bias)
        mixed: Tensor = self.get_submodule(self._output)(attended.transpose(1, 2).flatten(2))
        return mixed

    def _split(self, state: Tensor) -> Tensor:
        count, channels = state.shape[1], state.shape[2]
        return state.reshape(-1, count, self._heads, channels // self._heads).transpose(1, 2)


class Layers(nn.Module):
    """A list of layers with a name of its own."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, hidden: int, *, smooth: bool = False) -> None:
        """
        Args:
            smooth: GELU instead of ReLU.
        """
        super().__init__()
        self._activate = functional.gelu if smooth else functional.relu
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, state: Tensor) -> Tensor:
        fed: Tensor = self.fc2(self._activate(self.fc1(state)))
        return fed


class TextLayer(nn.Module):
    """A layer of CLIP's text encoder."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads, output="out_proj")
        self.layer_norm1 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden, smooth=True)
        self.layer_norm2 = nn.LayerNorm(width)

    def forward(self, state: Tensor, bias: Tensor) -> Tensor:
        """[B,T,C]."""
        normal = self.layer_norm1(state)
        state = state + self.self_attn(normal, normal, normal, bias)
        mixed: Tensor = state + self.mlp(self.layer_norm2(state))
        return mixed


class FusingLayer(nn.Module):
    """Attends to itself, then to something else; every part is normalised before, not after."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width)
        self.self_attn = Attention(width, heads)
        self.cross_attn = Attention(width, heads)
        self.layer_norm2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden)
        self.layer_norm3 = nn.LayerNorm(width)

    def attend_image(self, state: Tensor, bias: Tensor, image: Tensor, positions: Tensor) -> Tensor:
        """[B,E,C] tokens of exemplars, with an image [N,cells,C]."""
        normal = self.layer_norm1(state)
        state = state + self.self_attn(normal, normal, normal, bias)
        state = state + self.cross_attn(self.layer_norm2(state), image + positions, image)
        return self._feed(state)

    def attend_prompt(self, image: Tensor, positions: Tensor, prompt: Tensor, bias: Tensor) -> Tensor:
        """[N,cells,C] image, with a prompt [B,P,C] -> [B,cells,C]."""
        normal = self.layer_norm1(image)
        placed = normal + positions
        # Rows of one image stay one row up to here.
        image = image + self.self_attn(placed, placed, normal)
        image = image.expand(prompt.shape[0], -1, -1)
        image = image + self.cross_attn(self.layer_norm2(image), prompt, prompt, bias)
        return self._feed(image)

    def _feed(self, state: Tensor) -> Tensor:
        fed: Tensor = state + self.mlp(self.layer_norm3(state))
        return fed


class DecoderLayer(nn.Module):
    """Queries attend to each other, to the prompt and to the image; every part is normalised after."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.text_cross_attn = Attention(width, heads)
        self.text_cross_attn_layer_norm = nn.LayerNorm(width)
        self.vision_cross_attn = Attention(width, heads)
        self.vision_cross_attn_layer_norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden)
        self.mlp_layer_norm = nn.LayerNorm(width)

    def forward(
        self,
        state: Tensor,
        places: Tensor,
        prompt: Tensor,
        bias: Tensor,
        image: Tensor,
        positions: Tensor,
        near: Tensor,
    ) -> Tensor:
        """
        Args:
            state, places: [B,1+Q,C].
            prompt, bias: [B,P,C] and [B,1,1,P].
            image, positions: [B,cells,C] and [cells,C].
            near: [B,heads,1+Q,cells], added to the scores of the image's cells.
        """
        placed = state + places
        state = self.self_attn_layer_norm(state + self.self_attn(placed, placed, state))
        state = self.text_cross_attn_layer_norm(state + self.text_cross_attn(state + places, prompt, prompt, bias))
        seen = self.vision_cross_attn(state + places, image + positions, image, near)
        state = self.vision_cross_attn_layer_norm(state + seen)
        fed: Tensor = self.mlp_layer_norm(state + self.mlp(state))
        return fed


def waves(values: Tensor, count: int) -> Tensor:
    """[...] in 0..1 -> [...,count]: sines and cosines, in turn, of falling frequencies."""
    return _turn(values * (2 * math.pi), count)


def _turn(angles: Tensor, count: int) -> Tensor:
    steps = torch.arange(count // 2, device=angles.device).to(angles.dtype)
    turned = angles[..., None] / _BASE ** (2 * steps / count)
    return torch.stack([turned.sin(), turned.cos()], dim=-1).flatten(-2)


def sine_positions(grid: int, width: int) -> Tensor:
    """[grid*grid,width] float32: the positions of a map's cells, on the CPU."""
    line = torch.arange(1, grid + 1, dtype=torch.float32, device="cpu") / (grid + 1e-6) * (2 * math.pi)
    turned = _turn(line, width // 2)
    down, across = turned[:, None].expand(-1, grid, -1), turned[None].expand(grid, -1, -1)
    return torch.cat([down, across], dim=-1).flatten(0, 1)


def place_bias(edges: Tensor, grid: int) -> Tensor:
    """[B,Q,2] low and high edges in 0..1 -> [B,Q,grid,2]: signed logarithms of the cells' distances from them."""
    cells = torch.arange(grid, device=edges.device).to(edges.dtype) / grid
    away = (cells[:, None] - edges[:, :, None]) * 8
    return away.sign() * torch.log2(away.abs() + 1) / 3


def box_edges(boxes: Tensor) -> Tensor:
    """[...,4] cx, cy, w, h -> x0, y0, x1, y1."""
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([middle - half, middle + half], dim=-1)


def inverse_sigmoid(values: Tensor) -> Tensor:
    """[...] in 0..1 -> logits, with both ends cut as the reference does."""
    values = values.clamp(0, 1)
    return torch.log(values.clamp(min=_EDGE) / (1 - values).clamp(min=_EDGE))
