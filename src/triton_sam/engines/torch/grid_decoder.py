"""The mask decoder for many points of one image, one point a row.

The same masks as :class:`~triton_sam.engines.torch.decoder.RowDecoder` gives, with less work on the image, whose 4096
cells are nearly all of it:

- The image is one row until the end of the first layer, where the points first change it.
- Attention between a few tokens and many cells needs no projection of the cells. A score is a product of a projected
  token and a projected cell, so the cell's projection can be applied to the token instead; and a weighted mean of
  projected cells is the projection of their weighted mean. This holds in both directions.
- Every row has the same number of tokens, so nothing is masked out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.decoder import NOT_A_POINT, RowDecoder, attend, output_of


class GridStep(nn.Module):
    """The decoder for :data:`ROWS` points of one image, with the outputs that are needed after it."""

    #: Points of one run.
    ROWS: ClassVar[int] = 64
    #: Rows whose masks are made at a time: their finest features take 8 MB each, in half precision.
    SLICE: ClassVar[int] = 16

    def __init__(self, decoder: RowDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, row: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            row: [1,length], the image in the order of the layout.
            points: [R,2,3] float32: x and y in model pixels and a label; a point, and the padding after it.

        Returns:
            [R,M+1,h,w] logits, [R,h,w] the best mask, both in the decoder's dtype; and [R,M+2] float32: scores,
            followed by that of the best mask.
        """
        decoder = self.decoder
        parts = decoder.layout.split(row)
        embedding, *features = [parts[name] for name, _, _ in decoder.layout.parts]
        image = embedding + decoder.no_mask
        tokens, _ = decoder.prompt_tokens(points)
        start = tokens
        for layer in decoder.layers:
            tokens, image = _layer(layer, tokens, image, start, decoder.positions)
        placed = image + decoder.positions
        tokens = decoder.last_norm(tokens + _look(decoder.last, tokens + start, image, placed))
        weights, scores = decoder.heads(tokens)
        cells = torch.cat(
            [
                decoder.cells(some, features, its)
                for some, its in zip(torch.split(image, self.SLICE), torch.split(weights, self.SLICE), strict=True)
            ]
        )
        found = decoder.choose(cells, scores)
        best = scores.gather(1, found.choice[:, None])
        return found.logits, found.best, torch.cat([scores, best], dim=1)

    def inputs(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """An image and ``count`` points, zeros."""
        row = torch.zeros(1, self.decoder.layout.length, dtype=self.decoder.dtype, device=device)
        points = torch.zeros(count, 2, 3, device=device)
        points[:, :, 2] = torch.tensor([1.0, NOT_A_POINT])
        return row, points


def _layer(layer: Any, tokens: Tensor, image: Tensor, start: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """One two-way block. [R,T,256] tokens and [1 or R,N,256] image -> the same, the image of R rows."""
    own = layer.own
    placed = tokens + start if layer.adds_start else tokens
    looked = attend(own.q_proj(placed), own.k_proj(placed), own.v_proj(tokens), own.num_attention_heads)
    looked = output_of(own)(looked)
    tokens = layer.norms[0](tokens + looked if layer.adds_start else looked)
    cells = image + positions
    tokens = layer.norms[1](tokens + _look(layer.to_image, tokens + start, image, cells))
    tokens = layer.norms[2](tokens + layer.mlp(tokens))
    return tokens, layer.norms[3](image + _answer(layer.from_image, tokens, start, cells))


def _look(attention: Any, placed: Tensor, image: Tensor, cells: Tensor) -> Tensor:
    """Attention from tokens to the image.

    Args:
        attention: its keys' bias has no effect: it changes all scores of a token alike.
        placed: [R,T,256] tokens.
        image, cells: [1 or R,N,256], without and with positions.
    """
    heads = attention.heads
    query = attention.query(placed)
    rows, count, width = query.shape
    each = width // heads
    key, value = (part.weight.view(heads, each, -1) for part in (attention.key, attention.value))
    asked = torch.einsum("rthd,hdc->rhtc", query.view(rows, count, heads, each), key)
    # With one image for all, the tokens of all rows are simply more tokens.
    queries = asked.reshape(len(image), 1, -1, asked.shape[-1])
    seen = functional.scaled_dot_product_attention(queries, cells[:, None], image[:, None], scale=each**-0.5)
    told = torch.einsum("rhtc,hdc->rthd", seen.reshape(asked.shape), value).reshape(rows, count, width)
    looked: Tensor = attention.out(told + attention.value.bias)
    return looked


def _answer(attention: Any, tokens: Tensor, start: Tensor, cells: Tensor) -> Tensor:
    """Attention from the image to tokens: [R,T,256] tokens, [1 or R,N,256] cells with positions -> [R,N,256]."""
    heads = attention.num_attention_heads
    key, value = attention.k_proj(tokens + start), attention.v_proj(tokens)
    rows, count, width = key.shape
    each = width // heads
    key, value = (part.view(rows, count, heads, each) for part in (key, value))
    key = key * each**-0.5
    query, out = attention.q_proj, output_of(attention)
    asked = torch.einsum("rthd,hdc->rhtc", key, query.weight.view(heads, each, -1)).flatten(1, 2)
    constant = torch.einsum("rthd,hd->rht", key, query.bias.view(heads, each))
    told = torch.einsum("rthd,chd->rhtc", value, out.weight.view(-1, heads, each)).flatten(1, 2)
    # Tokens first: a row of scores is as long as the image, and the product for one image is a single one.
    if len(cells) == 1:
        scores = (asked.flatten(0, 1) @ cells[0].T).view(rows, heads, count, -1)
    else:
        scores = (asked @ cells.transpose(1, 2)).view(rows, heads, count, -1)
    weights = functional.softmax(scores + constant[..., None], dim=2).flatten(1, 2)
    seen: Tensor = weights.transpose(1, 2) @ told + out.bias
    return seen
