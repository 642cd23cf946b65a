"""The two-way transformer of a mask decoder, written with the same operations for every network and release.

The layers are the network's own, found by the names of its weights. How they are connected is written here and not
taken from transformers, whose releases write the same attention with different operations: the rewrites of
:mod:`~triton_sam.export.cpu_decoder` would not recognise all of them. The network's own ``forward`` stays unchanged,
and every export is compared with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def run_two_way_transformer(
    transformer: Any, tokens: Tensor, image: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens and image attend to each other through all layers.

    Args:
        transformer: of a mask decoder of SAM 1, 2 or 3.
        tokens: [B,T,C]: the network's own, then those of the prompts.
        image: [B,N,C].
        positions: [1,N,C], position embeddings of the image's cells.

    Returns:
        [B,T,C] and [B,N,C].
    """
    start = tokens
    for layer in transformer.layers:
        if layer.skip_first_layer_pe:
            tokens = layer.layer_norm1(attend(layer.self_attn, tokens, tokens, tokens))
        else:
            query = tokens + start
            tokens = layer.layer_norm1(tokens + attend(layer.self_attn, query, query, tokens))
        attended = attend(layer.cross_attn_token_to_image, tokens + start, image + positions, image)
        tokens = layer.layer_norm2(tokens + attended)
        tokens = layer.layer_norm3(tokens + layer.mlp(tokens))
        attended = attend(layer.cross_attn_image_to_token, image + positions, tokens + start, tokens)
        image = layer.layer_norm4(image + attended)
    attended = attend(transformer.final_attn_token_to_image, tokens + start, image + positions, image)
    return transformer.layer_norm_final_attn(tokens + attended), image


def attend(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B,Q,C], [B,K,C], [B,K,C] -> [B,Q,C]: softmax(q k^T) v of the projected three, projected back."""
    heads = attention.num_attention_heads
    depth = attention.q_proj.out_features // heads

    def in_heads(projected: Tensor) -> Tensor:
        return projected.reshape(projected.shape[0], projected.shape[1], heads, depth)

    queries = in_heads(attention.q_proj(query)).permute(0, 2, 1, 3)  # [B,heads,Q,depth]
    keys = in_heads(attention.k_proj(key)).permute(0, 2, 3, 1)  # [B,heads,depth,K]
    values = in_heads(attention.v_proj(value)).permute(0, 2, 1, 3)  # [B,heads,K,depth]
    weights = torch.softmax((queries * depth**-0.5) @ keys, dim=-1)
    mixed = (weights @ values).permute(0, 2, 1, 3).flatten(2)
    # SAM 1 has another name for this layer.
    projection = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
    projected: Tensor = projection(mixed)
    return projected


def norm_over_channels(norm: Any, image: Tensor) -> Tensor:
    """Layer norm of [B,C,H,W] over C."""
    last = image.permute(0, 2, 3, 1)
    normed = functional.layer_norm(last, tuple(norm.weight.shape), norm.weight, norm.bias, norm.eps)
    return normed.permute(0, 3, 1, 2)
