"""The mask decoder of SAM 1, 2 and 3 for many rows at a time, each with its own image and its own prompt.

The same arithmetic as transformers' decoder with its weights, but arranged for a GPU:

- Rows have a fixed number of prompt tokens. Absent tokens are masked out of every attention, so a row gives the same
  masks whatever its neighbours are, and rows with different numbers of points fit into one batch.
- The image's part of a layer's three projections is one matrix product; the constant part of the positions is added
  from a table.
- A transposed convolution with stride 2 is a matrix product in the order of :mod:`.layout`.
- All four masks are computed, and the best one is chosen here, so that nothing waits for the host.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.layout import Layout, to_image
from triton_sam.models.architecture import Architecture, Backbone

#: Labels besides 0 to 3: the reference's padding token, and an unused slot.
NOT_A_POINT, ABSENT = -1, -2
_HIDDEN = -1e4  # less than any attention score; its exponential is exactly 0


class Masks(NamedTuple):
    """The decoder's output for R rows.

    Attributes:
        logits: [R,M+1,h,w]: the single mask, then the M others.
        scores: [R,M+1] float32, predicted IoU.
        choice: [R] int64, index of the mask for rows without multimask.
        best: [R,h,w], that mask.
    """

    logits: Tensor
    scores: Tensor
    choice: Tensor
    best: Tensor


class RowDecoder(nn.Module):
    """A decoder built from the weights of a network's prompt encoder and mask decoder, which it rearranges."""

    def __init__(self, network: Any, architecture: Architecture, layout: Layout) -> None:
        super().__init__()
        # Copies: the encoder may keep the network, in another dtype.
        decoder, prompts = copy.deepcopy(network.mask_decoder), copy.deepcopy(network.prompt_encoder)
        self.layout = layout
        self.has_features = architecture.backbone in (Backbone.HIERA, Backbone.PERCEPTION)
        self.mask_count = int(decoder.num_mask_tokens)
        self.side = float(prompts.input_image_size)
        self.stability = self._stability(decoder)
        positions = network.get_image_wide_positional_embeddings()[0].flatten(1).T  # [cells,256]
        self.positions = _kept(positions)
        self.mask_embed = prompts.mask_embed
        self.no_mask = _kept(prompts.no_mask_embed.weight.reshape(1, 1, -1))
        self.waves = nn.Buffer(prompts.shared_embedding.positional_embedding.detach().float().clone())
        self.labels = _kept(_label_table(prompts))
        own = [decoder.iou_token.weight, decoder.mask_tokens.weight]
        if self.has_features:
            own.insert(0, decoder.obj_score_token.weight)
        self.own_tokens = _kept(torch.cat(own))
        self.first_mask = len(self.own_tokens) - self.mask_count

        transformer = decoder.transformer
        self.layers = nn.ModuleList(_Layer(layer, positions) for layer in transformer.layers)
        self.last = _TokensToImage(transformer.final_attn_token_to_image)
        self.last_image = _ImageProjection([self.last.key, self.last.value], positions, with_positions=(True, False))
        self.last_norm = transformer.layer_norm_final_attn

        self.upscale1 = _Enlarge(decoder.upscale_conv1)
        self.upscale_norm = decoder.upscale_layer_norm
        self.upscale2 = _Enlarge(decoder.upscale_conv2)
        self.hypernetworks = _Hypernetworks(decoder.output_hypernetworks_mlps)
        self.score_head = decoder.iou_prediction_head
        self.eval().requires_grad_(False)

    @staticmethod
    def _stability(decoder: Any) -> tuple[float, float] | None:
        """(margin of the logits, stability threshold) if a more stable mask may replace the single one; else None."""
        if not getattr(decoder, "dynamic_multimask_via_stability", False):
            return None
        return decoder.dynamic_multimask_stability_delta, decoder.dynamic_multimask_stability_thresh

    def cast(self, device: torch.device, dtype: torch.dtype) -> RowDecoder:
        """Moves it to a device and a dtype; coordinates are still computed in float32."""
        exact = self.waves
        self.to(device, dtype)
        self.waves = nn.Buffer(exact.to(device))
        return self

    @property
    def dtype(self) -> torch.dtype:
        return self.own_tokens.dtype

    def forward(self, rows: Tensor, points: Tensor, masks: Tensor | None = None) -> Masks:
        """
        Args:
            rows: [R,length], images in the order of the layout.
            points: [R,S,3] float32: x and y in model pixels, and a label; see :data:`NOT_A_POINT`, :data:`ABSENT`.
            masks: [R,1,h,w] logits as prompts, for every row or for none.
        """
        parts = self.layout.split(rows)
        embedding, *features = [parts[name] for name, _, _ in self.layout.parts]
        image = embedding + (self.no_mask if masks is None else self.dense(masks))
        tokens, image = self.look(image, *self.prompt_tokens(points))
        weights, scores = self.heads(tokens)
        return self.choose(self.cells(image, features, weights).float(), scores)

    def look(self, image: Tensor, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[R,N,256] images with dense prompts, and :meth:`prompt_tokens` -> [R,T,256] and [R,N,256] at the end."""
        start = tokens
        for layer in self.layers:
            tokens, image = layer(tokens, image, start, hidden)
        key, value = self.last_image(image)
        return self.last_norm(tokens + self.last(tokens + start, key, value)), image

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[R,T,256] tokens at the end -> [R,M+1,C] weights of each mask, and [R,M+1] scores, float32."""
        weights: Tensor = self.hypernetworks(tokens[:, self.first_mask : self.first_mask + self.mask_count])
        return weights, self.score_head(tokens[:, self.first_mask - 1]).float()

    def cells(self, image: Tensor, features: Sequence[Tensor], weights: Tensor) -> Tensor:
        """[R,N,256] image, finer features of R images or of one, [R,M+1,C] weights -> [R,M+1,16N] logits of cells."""
        grid = self.upscale1(image)
        if self.has_features:
            grid = grid + features[0]
        # transformers' layer norm over channels_first maps permutes twice; here channels are last already.
        norm = self.upscale_norm
        grid = functional.gelu(functional.layer_norm(grid, norm.normalized_shape, norm.weight, norm.bias, norm.eps))
        grid = self.upscale2(grid)
        grid = functional.gelu(grid + features[1] if self.has_features else grid)
        return weights @ grid.transpose(1, 2)

    def dense(self, masks: Tensor) -> Tensor:
        """[R,1,h,w] logits as prompts -> [R,N,256]."""
        dense: Tensor = self.mask_embed(masks.to(self.dtype))
        return dense.flatten(2).transpose(1, 2)

    def prompt_tokens(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """[R,T,256] tokens, and [R,1,1,T] the mask that is added to their attention scores."""
        coords, labels = points[..., :2], points[..., 2].long()
        turns = (2 * (coords + 0.5) / self.side - 1) @ self.waves * (2 * math.pi)
        waves = torch.cat([turns.sin(), turns.cos()], dim=-1)
        place = torch.where((labels >= 0)[..., None], waves, 0.0).to(self.dtype)
        prompt = place + self.labels[labels - ABSENT]
        own = self.own_tokens.expand(len(points), -1, -1)
        present = functional.pad(labels != ABSENT, (len(self.own_tokens), 0), value=True)
        hidden = torch.where(present, 0.0, _HIDDEN).to(self.dtype)
        return torch.cat([own, prompt], dim=1), hidden[:, None, None]

    def choose(self, cells: Tensor, scores: Tensor) -> Masks:
        """[R,M+1,16N] logits in the order of cells, [R,M+1] scores -> masks in image order."""
        choice = self.choice(cells, scores)
        logits = to_image(cells, self.layout.grid)
        best = logits.gather(1, choice[:, None, None, None].expand(-1, 1, *logits.shape[2:]))[:, 0]
        return Masks(logits, scores, choice, best)

    def choice(self, cells: Tensor, scores: Tensor) -> Tensor:
        """[R,M+1,16N] logits, [R,M+1] scores -> [R] int64, the index of the single mask, or of a more stable one."""
        choice = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        if self.stability is None:
            return choice
        margin, least = self.stability
        single = cells[:, 0]
        inner, outer = (single > margin).sum(-1).float(), (single > -margin).sum(-1).float()
        stable = torch.where(outer > 0, inner / outer, 1.0) >= least
        return torch.where(stable, choice, 1 + scores[:, 1:].argmax(-1))


class DecoderStep(nn.Module):
    """The decoder with the outputs that are needed after it, in a plain tuple, as compilers take it."""

    #: Prompt slots plus the decoder's own tokens are a multiple of this, which suits the hardware.
    TOKENS = 16

    def __init__(self, decoder: RowDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, rows: Tensor, points: Tensor, masks: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """[R,M+1,h,w] logits, [R,h,w] the best mask, and [R,M+2] scores followed by the choice, in one tensor."""
        found = self.decoder(rows, points, masks)
        return found.logits, found.best, torch.cat([found.scores, found.choice[:, None].float()], dim=1)

    def inputs(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and points of ``count`` clicks, in the fewest slots; zeros."""
        slots = self.TOKENS - len(self.decoder.own_tokens)
        rows = torch.zeros(count, self.decoder.layout.length, dtype=self.decoder.dtype, device=device)
        return rows, torch.zeros(count, slots, 3, device=device)


class _Layer(nn.Module):
    """One two-way block: tokens among themselves, tokens to image, tokens alone, image to tokens."""

    def __init__(self, layer: Any, positions: Tensor) -> None:
        super().__init__()
        self.own = layer.self_attn
        self.adds_start = not layer.skip_first_layer_pe
        self.norms = nn.ModuleList([layer.layer_norm1, layer.layer_norm2, layer.layer_norm3, layer.layer_norm4])
        self.to_image = _TokensToImage(layer.cross_attn_token_to_image)
        self.mlp = layer.mlp
        self.from_image = layer.cross_attn_image_to_token
        self.image = _ImageProjection(
            [self.to_image.key, self.to_image.value, self.from_image.q_proj], positions, (True, False, True)
        )

    def forward(self, tokens: Tensor, image: Tensor, start: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        placed = tokens + start if self.adds_start else tokens
        heads = self.own.num_attention_heads
        looked = attend(self.own.q_proj(placed), self.own.k_proj(placed), self.own.v_proj(tokens), heads, hidden)
        looked = output_of(self.own)(looked)
        tokens = self.norms[0](tokens + looked if self.adds_start else looked)
        key, value, query = self.image(image)
        tokens = self.norms[1](tokens + self.to_image(tokens + start, key, value))
        tokens = self.norms[2](tokens + self.mlp(tokens))
        seen = attend(query, self.from_image.k_proj(tokens + start), self.from_image.v_proj(tokens), heads, hidden)
        return tokens, self.norms[3](image + output_of(self.from_image)(seen))


class _TokensToImage(nn.Module):
    """Attention from tokens to the image, whose keys and values are projected elsewhere."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.heads = attention.num_attention_heads
        self.query, self.key, self.value = attention.q_proj, attention.k_proj, attention.v_proj
        self.out = output_of(attention)

    def forward(self, placed: Tensor, key: Tensor, value: Tensor) -> Tensor:
        looked: Tensor = self.out(attend(self.query(placed), key, value, self.heads))
        return looked


class _ImageProjection(nn.Module):
    """Several projections of the image in one matrix product, plus a table for its positions."""

    weight: Tensor
    table: Tensor

    def __init__(self, projections: list[Any], positions: Tensor, with_positions: tuple[bool, ...]) -> None:
        super().__init__()
        self.widths = [projection.out_features for projection in projections]
        tables = [
            functional.linear(positions if placed else torch.zeros_like(positions), one.weight, one.bias)
            for one, placed in zip(projections, with_positions, strict=True)
        ]
        self.weight = _kept(torch.cat([one.weight for one in projections]))
        self.table = _kept(torch.cat(tables, dim=1))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return torch.split(functional.linear(image, self.weight) + self.table, self.widths, dim=-1)


class _Enlarge(nn.Module):
    """A transposed convolution of kernel and stride 2: each cell becomes four. [R,N,C] -> [R,4N,D]."""

    weight: Tensor
    bias: Tensor

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.width = convolution.out_channels
        self.weight = _kept(convolution.weight.permute(2, 3, 1, 0).flatten(0, 2))
        self.bias = _kept(convolution.bias.repeat(4))

    def forward(self, cells: Tensor) -> Tensor:
        return functional.linear(cells, self.weight, self.bias).view(len(cells), -1, self.width)


class _Hypernetworks(nn.Module):
    """One small network for each mask, all at once. [R,M,256] -> [R,M,32]."""

    def __init__(self, networks: Any) -> None:
        super().__init__()
        steps = list(zip(*([one.proj_in, *one.layers, one.proj_out] for one in networks), strict=True))
        self.weights = nn.ParameterList(_kept(torch.stack([part.weight.T for part in parts])) for parts in steps)
        self.biases = nn.ParameterList(_kept(torch.stack([part.bias[None] for part in parts])) for parts in steps)

    def forward(self, tokens: Tensor) -> Tensor:
        state = tokens.transpose(0, 1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            state = torch.baddbmm(bias, state, weight)
            if index + 1 < len(self.weights):
                state = functional.relu(state)
        return state.transpose(0, 1)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, hidden: Tensor | None = None) -> Tensor:
    """[R,Q,C], [R,K,C], [R,K,C] -> [R,Q,C]; ``hidden`` [R,1,1,K] is added to the scores."""
    rows, count, width = query.shape
    query, key, value = (part.view(rows, -1, heads, width // heads).transpose(1, 2) for part in (query, key, value))
    if hidden is not None:
        hidden = hidden.expand(-1, -1, count, -1)
    seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden)
    return seen.transpose(1, 2).reshape(rows, count, width)


def output_of(attention: Any) -> Any:
    """The output projection, which has another name in SAM 1."""
    return attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj


def _label_table(prompts: Any) -> Tensor:
    """[6,256]: embeddings of absent, not-a-point, background, foreground and the two corners of a box."""
    table = prompts.point_embed.weight if hasattr(prompts.point_embed, "weight") else None
    known = table if table is not None else torch.cat([one.weight for one in prompts.point_embed])
    return torch.cat([torch.zeros_like(known[:1]), prompts.not_a_point_embed.weight, known])


def _kept(tensor: Tensor) -> nn.Parameter:
    """A copy as a parameter, so that the network it comes from can be freed."""
    return nn.Parameter(tensor.detach().clone().contiguous(), requires_grad=False)
