"""The detector of SAM 3: words, examples and an image in, and candidates with scores, boxes and what makes their masks.

The same arithmetic as :class:`~triton_sam.networks.concept_layers.ConceptLayers`, but arranged for a GPU:

- What depends on the image alone is done before, once for all concepts: see :mod:`.concept_image`.
- The prompt is the same for all layers, and so is the image for all layers of the decoder: one matrix product makes the
  keys and values of all of them.
- The bias that boxes give to attention is the sum of one for rows and one for columns; it is added where it is needed.
- Products of matrices have shapes that fill a GPU: see :class:`_EdgeBias` and :meth:`_DecoderLayer._look`.
- Masks are left to those who choose: see :meth:`DetectStep.forward`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.concept_image import SelfAttention
from triton_sam.engines.torch.concept_parts import Attention, Projections, cast, fed, split
from triton_sam.engines.torch.concept_pixels import Pixels
from triton_sam.engines.torch.perception import fixed
from triton_sam.networks.concept_blocks import BLOCKED, box_edges, inverse_sigmoid, place_bias, waves
from triton_sam.networks.concept_layers import MOST_PRESENCE, PADDING

#: Rows of cells in a part of the image, at most: see :meth:`_DecoderLayer._look`.
_ROWS_OF_A_PART = 8


class DetectStep(nn.Module):
    """B concepts of one image."""

    def __init__(self, concepts: Any, grid: int, heads: int) -> None:
        """
        Args:
            concepts: the network's :class:`~triton_sam.networks.concept_layers.ConceptLayers`.
            grid: cells of an image along a side.
        """
        super().__init__()
        encoder, decoder, masks = concepts.detr_encoder, concepts.detr_decoder, concepts.mask_decoder
        positions = concepts.positions
        self.width = positions.shape[1]
        self.positions = nn.Parameter(positions.clone(), requires_grad=False)
        self.examples = concepts.geometry_encoder
        self.encoder = nn.ModuleList(
            _EncoderLayer(layer, positions if number else None, heads) for number, layer in enumerate(encoder.layers)
        )
        self.decoder = _Decoder(decoder, grid, heads)
        self.pixels = Pixels(masks, grid, heads)
        readers = [
            *(layer.cross_attn for layer in encoder.layers),
            *(layer.text_cross_attn for layer in decoder.layers),
            masks.prompt_cross_attn,
        ]
        #: Keys and values of the prompt, for everything that reads it.
        self.prompts = Projections([one for reader in readers for one in (reader.k_proj, reader.v_proj)])
        lookers = [layer.vision_cross_attn for layer in decoder.layers]
        #: Keys and values of the image, for all layers of the decoder.
        self.images = Projections(
            [one for looker in lookers for one in (looker.k_proj, looker.v_proj)],
            positions,
            [True, False] * len(lookers),
        )
        self.scoring = concepts.dot_product_scoring
        self.queries = len(decoder.query_embed.weight)
        self.eval().requires_grad_(False)

    def cast(self, device: torch.device, dtype: torch.dtype) -> DetectStep:
        cast(self, device, dtype, [self.encoder, self.pixels.halves, self.images])
        return self

    # Many parameters: compilers take plain tensors.
    def forward(
        self,
        fine: Tensor,
        middle: Tensor,
        coarse: Tensor,
        image: Tensor,
        words: Tensor,
        word_mask: Tensor,
        boxes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            fine, middle, coarse, image: of :class:`~triton_sam.engines.torch.concept_image.ConceptImageStep`.
            words, word_mask: [B,T,C] float32, and [B,T] float32, 1 where there is a token.
            boxes: [B,E,5] float32, cxcywh in 0..1 and a label: 1, 0, or PADDING where there is none.

        Returns:
            [B,5Q+1] float32: logits, boxes xyxy in 0..1, and the logit of presence;
            [B,Q,C+1] float32, what a candidate's mask is made with; and [B,16n,C], what of.
            Mask logits are the products of the two, plus the last column.
        """
        prompt, counts = words, word_mask
        if boxes is not None:
            shown, shown_counts = self._shown(coarse.permute(0, 3, 1, 2).float(), boxes)
            prompt, counts = torch.cat([words, shown], dim=1), torch.cat([word_mask, shown_counts], dim=1)
        hidden = ((1 - counts) * BLOCKED)[:, None, None]
        read = self.prompts(prompt).split(2 * self.width, dim=2)
        state, layers = image.expand(len(words), -1, -1), len(self.encoder)
        for layer, keys in zip(self.encoder, read[:layers], strict=True):
            state = layer(state, keys, hidden)
        seen = self.images(state).split(2 * self.width, dim=2)
        queries, found, presence = self.decoder(seen, read[layers:-1], hidden)
        logits = self.scoring(queries, prompt, counts)
        facts = torch.cat([logits, box_edges(found).flatten(1), presence], dim=1)
        return facts, *self.pixels(fine, middle, state, queries, read[-1], hidden)

    def _shown(self, coarse: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Examples as tokens of the prompt: [B,E+1,C], and [B,E+1], 1 where there is one."""
        # Compilers time their code with any numbers, which must not lead out of the table of labels.
        places, labels = boxes[..., :4], boxes[..., 4].long().clamp(PADDING, 1)
        given = (labels != PADDING).float()
        shown, counts = self.examples(coarse, self.positions, places, labels, given)
        # A concept without examples has no token for all of them either: so it equals one that is looked for alone.
        return shown, counts * given.amax(dim=1, keepdim=True)

    def inputs(self, count: int, examples: int, tokens: int, device: torch.device) -> tuple[Tensor, ...]:
        """Words, their mask, and boxes if there are examples; zeros, but for the first token."""
        words = torch.zeros(count, tokens, self.width, device=device)
        mask = torch.zeros(count, tokens, device=device)
        mask[:, 0] = 1
        boxes = torch.zeros(count, examples, 5, device=device)
        boxes[:, :, 4] = PADDING
        return (words, mask, boxes) if examples else (words, mask)


class _EncoderLayer(nn.Module):
    """The image among itself, then to the prompt, then alone; normalised before each."""

    def __init__(self, layer: Any, positions: Tensor | None, heads: int) -> None:
        """
        Args:
            positions: None for the first layer, whose first part is in :mod:`.concept_image`.
        """
        super().__init__()
        self.own = None if positions is None else SelfAttention(layer, positions, heads)
        self.norm2, self.norm3 = layer.layer_norm2, layer.layer_norm3
        self.to_prompt, self.mlp = Attention(layer.cross_attn, heads), layer.mlp

    def forward(self, state: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        if self.own is not None:
            state = state + self.own(state)
        state = state + self.to_prompt(self.norm2(state), keys, hidden)
        return state + fed(self.mlp, self.norm3(state))


class _Decoder(nn.Module):
    """Queries look for instances, and refine their boxes in each layer. All in float32."""

    def __init__(self, decoder: Any, grid: int, heads: int) -> None:
        super().__init__()
        self.grid = grid
        self.layers = nn.ModuleList(_DecoderLayer(layer, heads) for layer in decoder.layers)
        self.queries = fixed(torch.cat([decoder.presence_token.weight, decoder.query_embed.weight]))
        self.start = fixed(decoder.reference_points.weight.sigmoid())
        self.place, self.box, self.presence = decoder.ref_point_head, decoder.box_head, decoder.presence_head
        self.norm, self.presence_norm = decoder.output_layer_norm, decoder.presence_layer_norm
        self.rows, self.columns = _EdgeBias(decoder.box_rpb_embed_y), _EdgeBias(decoder.box_rpb_embed_x)
        self.each = self.queries.shape[1] // 2

    def forward(
        self, seen: tuple[Tensor, ...], read: tuple[Tensor, ...], hidden: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B,Q,C] queries at the end, [B,Q,4] their boxes cxcywh, and [B,1] the logit of presence."""
        count = len(hidden)
        state, boxes = self.queries.expand(count, -1, -1), self.start.expand(count, -1, -1)
        for layer, keys, words in zip(self.layers, seen, read, strict=True):
            # y, x, w, h; indices in a list would be copied from the host, which a CUDA graph cannot hold
            turned = torch.cat([boxes[..., :2].flip(-1), boxes[..., 2:]], dim=-1)
            placed = self.place(waves(turned, self.each).flatten(2))
            # The first query stands for the concept's presence; it has no place.
            state = layer(state, functional.pad(placed, (0, 0, 1, 0)), words, hidden, keys, self._bias(boxes))
            queries = self.norm(state[:, 1:])
            boxes = (self.box(queries) + inverse_sigmoid(boxes)).sigmoid()
        return queries, boxes, self.presence(self.presence_norm(state[:, 0])).clamp(-MOST_PRESENCE, MOST_PRESENCE)

    def _bias(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """[B,Q,4] -> [B,H,1+Q,g,1] and [B,H,1+Q,1,g], whose sum is the bias of attention to cells; 0 for presence."""
        edges = box_edges(boxes)
        rows, columns = (
            functional.pad(embed(place_bias(edges[..., which::2], self.grid)).permute(0, 3, 1, 2), (0, 0, 1, 0))
            for which, embed in ((1, self.rows), (0, self.columns))
        )
        return rows[..., None], columns[..., None, :]


class _EdgeBias(nn.Module):
    """What a cell's two distances from a box's edges give to attention. [B,Q,g,2] -> [B,Q,g,H]."""

    def __init__(self, embed: Any) -> None:
        super().__init__()
        self.first, self.last = embed.layer1, embed.layer2

    def forward(self, away: Tensor) -> Tensor:
        # A matrix product with two terms takes as long as one with hundreds, and compilers fuse these with the ReLU.
        low, high = self.first.weight.unbind(1)
        state = away[..., :1] * low + away[..., 1:] * high + self.first.bias
        result: Tensor = self.last(functional.relu(state))
        return result


class _DecoderLayer(nn.Module):
    """Queries among themselves, to the prompt, to the image, and alone; normalised after each."""

    def __init__(self, layer: Any, heads: int) -> None:
        super().__init__()
        own = layer.self_attn
        self.placed, self.value = Projections([own.q_proj, own.k_proj]), own.v_proj
        self.own = Attention(own, heads)
        self.to_prompt = Attention(layer.text_cross_attn, heads)
        self.to_image = Attention(layer.vision_cross_attn, heads)
        self.mlp = layer.mlp
        names = ("self_attn", "text_cross_attn", "vision_cross_attn", "mlp")
        self.norms = nn.ModuleList(getattr(layer, f"{name}_layer_norm") for name in names)

    # Many parameters: each part has its own.
    def forward(
        self,
        state: Tensor,
        place: Tensor,
        words: Tensor,
        hidden: Tensor,
        keys: Tensor,
        bias: tuple[Tensor, Tensor],
    ) -> Tensor:
        query, key = self.placed(state + place).chunk(2, dim=2)
        state = self.norms[0](state + self.own.mixed(query, key, self.value(state)))
        state = self.norms[1](state + self.to_prompt(state + place, words, hidden))
        state = self.norms[2](state + self._look(state + place, keys, bias))
        result: Tensor = self.norms[3](state + self.mlp(state))
        return result

    def _look(self, placed: Tensor, keys: Tensor, bias: tuple[Tensor, Tensor]) -> Tensor:
        """Attention to the image with a bias.

        In products of matrices, because so few queries leave fused kernels idle, and in parts of the image that are
        joined at the end, because one product with all cells, and one softmax over them, leave most of a GPU idle too.
        """
        heads = self.to_image.heads
        key, value = (split(part.float(), heads) for part in keys.chunk(2, dim=2))
        query = split(self.to_image.query(placed), heads)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
        rows, columns = bias
        high, wide = math.gcd(rows.shape[3], _ROWS_OF_A_PART), columns.shape[4]
        rows = rows.reshape(*rows.shape[:3], -1, high, 1)
        scores = scores.reshape(*scores.shape[:3], -1, high, wide) + rows + columns[:, :, :, None]
        scores = scores.flatten(4).transpose(2, 3)  # [B,H,parts,1+Q,cells]
        most = scores.amax(dim=4, keepdim=True)
        weights = (scores - most).exp()
        seen = weights @ value.reshape(*value.shape[:2], scores.shape[2], -1, value.shape[3])
        share = (most - most.amax(dim=2, keepdim=True)).exp()
        whole = (weights.sum(dim=4, keepdim=True) * share).sum(dim=2)
        return self.to_image.joined((seen * share).sum(dim=2) / whole)
