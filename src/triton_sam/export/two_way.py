"""The middle of a mask decoder: tokens and image look at each other, in one spelling for every network and release.

The layers are the network's own, found by the names that its weights have. How they are joined is written here and not
taken from transformers, whose releases spell the same attention in other operations: the rewrites of
:mod:`~triton_sam.export.cpu_decoder` would find less of it in one than in another. The network's own ``forward`` stays
untouched, and every export is compared with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def look_at_each_other(transformer: Any, tokens: Tensor, image: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens and the image after all layers.

    Args:
        transformer: of a mask decoder of SAM 1, 2 or 3.
        tokens: [B,T,C]: a network's own, then those of the prompts.
        image: [B,N,C].
        positions: [1,N,C], where each place of the image is.

    Returns:
        [B,T,C] and [B,N,C].
    """
    start = tokens
    for layer in transformer.layers:
        if layer.skip_first_layer_pe:
            tokens = layer.layer_norm1(attend(layer.self_attn, tokens, tokens, tokens))
        else:
            placed = tokens + start
            tokens = layer.layer_norm1(tokens + attend(layer.self_attn, placed, placed, tokens))
        seen = attend(layer.cross_attn_token_to_image, tokens + start, image + positions, image)
        tokens = layer.layer_norm2(tokens + seen)
        tokens = layer.layer_norm3(tokens + layer.mlp(tokens))
        told = attend(layer.cross_attn_image_to_token, image + positions, tokens + start, tokens)
        image = layer.layer_norm4(image + told)
    seen = attend(transformer.final_attn_token_to_image, tokens + start, image + positions, image)
    return transformer.layer_norm_final_attn(tokens + seen), image


def attend(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B,Q,C], [B,K,C], [B,K,C] -> [B,Q,C]: softmax(q k^T) v of the projected three, projected back."""
    heads = attention.num_attention_heads
    depth = attention.q_proj.out_features // heads

    def in_heads(projected: Tensor) -> Tensor:
        return projected.reshape(projected.shape[0], projected.shape[1], heads, depth)

    asked = in_heads(attention.q_proj(query)).permute(0, 2, 1, 3)  # [B,heads,Q,depth]
    keys = in_heads(attention.k_proj(key)).permute(0, 2, 3, 1)  # [B,heads,depth,K]
    values = in_heads(attention.v_proj(value)).permute(0, 2, 1, 3)  # [B,heads,K,depth]
    weights = torch.softmax((asked * depth**-0.5) @ keys, dim=-1)
    mixed = (weights @ values).permute(0, 2, 1, 3).flatten(2)
    # SAM 1 calls this layer otherwise than the later ones.
    projection = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
    projected: Tensor = projection(mixed)
    return projected


def norm_over_channels(norm: Any, image: Tensor) -> Tensor:
    """[B,C,H,W] normed over C."""
    last = image.permute(0, 2, 3, 1)
    normed = functional.layer_norm(last, tuple(norm.weight.shape), norm.weight, norm.bias, norm.eps)
    return normed.permute(0, 3, 1, 2)
