"""The text encoder: CLIP's, and the projection to the detector's width."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.concept_parts import Attention, Projections, cast, fed, split
from triton_sam.engines.torch.perception import fixed


class TextStep(nn.Module):
    """Texts as tokens -> their features. What follows the end of a text is never looked at, and so is not masked."""

    def __init__(self, concepts: Any, heads: int) -> None:
        """
        Args:
            concepts: the network's part that finds concepts.
        """
        super().__init__()
        text = concepts.text_encoder.text_model
        self.words = fixed(text.embeddings.token_embedding.weight)
        self.places = fixed(text.embeddings.position_embedding.weight)
        self.layers = nn.ModuleList(_Layer(layer, heads) for layer in text.encoder.layers)
        self.norm, self.out = text.final_layer_norm, concepts.text_projection
        self.eval().requires_grad_(False)

    def cast(self, device: torch.device, dtype: torch.dtype) -> TextStep:
        cast(self, device, dtype, self.layers)
        self.words.data = self.words.data.to(dtype)
        return self

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """[N,T] int64 -> [N,T,C] float32."""
        state = self.words[tokens].float() + self.places
        for layer in self.layers:
            state = layer(state)
        return (self.out(self.norm(state)),)

    def inputs(self, count: int, device: torch.device) -> tuple[Tensor]:
        """Tokens of ``count`` texts, zeros."""
        return (torch.zeros(count, len(self.places), dtype=torch.int64, device=device),)


class _Layer(nn.Module):
    """A block that normalises before each part; a token sees those before it."""

    def __init__(self, layer: Any, heads: int) -> None:
        super().__init__()
        own = layer.self_attn
        self.norm1, self.norm2 = layer.layer_norm1, layer.layer_norm2
        self.projections = Projections([own.q_proj, own.k_proj, own.v_proj])
        self.attention = Attention(own, heads)
        self.mlp = layer.mlp

    def forward(self, state: Tensor) -> Tensor:
        projected = self.projections(self.norm1(state)).chunk(3, dim=2)
        query, key, value = (split(part, self.attention.heads) for part in projected)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        state = state + self.attention.joined(seen)
        result: Tensor = state + fed(self.mlp, self.norm2(state))
        return result
