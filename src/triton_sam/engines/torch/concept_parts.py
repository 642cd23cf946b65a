"""Parts of what finds concepts, built of the layers of :mod:`triton_sam.networks.concept_layers`.

Arithmetic with many numbers, on the image and in the text encoder, has the dtype that the step is cast to. What is
added up through the layers, norms, softmax, everything on the few hundred queries, boxes and scores are float32: it is
little work, and boxes are refined from layer to layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.decoder import output_of
from triton_sam.engines.torch.perception import fixed


class Projections(nn.Module):
    """Several projections of the same tokens in one matrix product, of which some see positions too."""

    def __init__(
        self, projections: Sequence[Any], positions: Tensor | None = None, placed: Iterable[bool] = ()
    ) -> None:
        """
        Args:
            positions: [n,C] float32 of the tokens, whose projections are added from a table.
            placed: whether each projection is of tokens with positions.
        """
        super().__init__()
        self.weight = fixed(torch.cat([one.weight for one in projections]))
        table = torch.cat([one.bias for one in projections])[None]
        if positions is not None:
            zeros = torch.zeros_like(positions)
            sources = [positions if yes else zeros for yes in placed]
            table = torch.cat(
                [functional.linear(it, one.weight, one.bias) for it, one in zip(sources, projections, strict=True)], 1
            )
        self.table = fixed(table)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B,n,C] -> [B,n,D], all results side by side."""
        return functional.linear(tokens.to(self.weight.dtype), self.weight) + self.table


class Attention(nn.Module):
    """Attention of tokens to others whose keys and values are projected elsewhere."""

    def __init__(self, attention: Any, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = attention.q_proj, output_of(attention)

    def forward(self, placed: Tensor, keys: Tensor, hidden: Tensor | None = None) -> Tensor:
        """[B,n,C], and [B,k,2C] keys and values; ``hidden`` [B,1,1,k] is added to the scores -> [B,n,C]."""
        dtype = self.query.weight.dtype
        key, value = keys.to(dtype).chunk(2, dim=2)
        return self.mixed(self.query(placed.to(dtype)), key, value, hidden)

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The same with projected queries."""
        query, key, value = (split(part, self.heads) for part in (query, key, value))
        if hidden is not None:
            hidden = hidden.to(query.dtype).expand(-1, -1, query.shape[2], -1)
        return self.joined(functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden))

    def joined(self, seen: Tensor) -> Tensor:
        """[B,H,n,d] -> [B,n,C]."""
        looked: Tensor = self.out(seen.transpose(1, 2).flatten(2).to(self.out.weight.dtype))
        return looked


def fed(mlp: Any, tokens: Tensor) -> Tensor:
    """[B,n,C] float32 -> [B,n,C] in the layers' dtype."""
    result: Tensor = mlp(tokens.to(mlp.fc1.weight.dtype))
    return result


def split(tokens: Tensor, heads: int) -> Tensor:
    """[B,n,C] -> [B,H,n,d], a view."""
    rows, count, width = tokens.shape
    return tokens.view(rows, count, heads, width // heads).transpose(1, 2)


def cast(module: nn.Module, device: torch.device, dtype: torch.dtype, halves: Iterable[nn.Module]) -> None:
    """Moves a module to a device in float32, except for the linear and convolutional layers of some of its parts.

    Args:
        dtype: of those layers.
        halves: those parts.
    """
    module.to(device, torch.float32)
    for part in halves:
        for one in part.modules():
            if not isinstance(one, nn.LayerNorm | nn.GroupNorm):
                for parameter in one.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)
