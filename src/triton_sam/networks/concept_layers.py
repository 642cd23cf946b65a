"""SAM 3's text encoder and detector as plain torch layers, with the names and shapes of transformers' ``Sam3Model``.

They know nothing of the image encoder: its last map, which the clicks' network makes as well, is an input. What is
computed is equal to ``Sam3Model.forward``; a row without exemplars is computed as if it stood alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.models.architecture import Architecture, ConceptArchitecture
from triton_sam.networks.concept_blocks import (
    BLOCKED,
    Attention,
    DecoderLayer,
    FusingLayer,
    Layers,
    TextLayer,
    box_edges,
    inverse_sigmoid,
    place_bias,
    sine_positions,
    waves,
)
from triton_sam.networks.roi_align import roi_align

#: The label of a box that is only there to fill up.
PADDING = -10
_PREFIX = "concepts"
_ROI = 7
_GROUPS = 8
_MOST_LOGIT = 12.0
#: Logits of presence lie between plus and minus this.
MOST_PRESENCE = 10.0
#: Weights of official files that no instance depends on.
_UNUSED = (
    "neck.fpn_layers.3.",
    "text_encoder.text_projection.",
    "mask_decoder.semantic_projection.",
    "mask_decoder.pixel_decoder.conv_layers.2.",
    "mask_decoder.pixel_decoder.norms.2.",
)


class Detections(NamedTuple):
    """What the detector says of B concepts with Q queries.

    Attributes:
        logits: [B,Q].
        presence: [B,1] logits of the concept being in the image at all.
        boxes: [B,Q,4] xyxy in 0..1.
        masks: [B,Q,4g,4g] logits.
    """

    logits: Tensor
    presence: Tensor
    boxes: Tensor
    masks: Tensor


def is_concept_name(name: str) -> bool:
    """Whether a weight of a network belongs to what finds concepts."""
    return name.partition(".")[0] == _PREFIX


def is_unused(name: str) -> bool:
    """Whether no instance depends on a weight of this name: of such none is kept."""
    return name.startswith(tuple(f"{_PREFIX}.{unused}" for unused in _UNUSED))


def add_concepts(network: Any, architecture: Architecture, side: int) -> None:
    """Adds the layers, whose weights are still to be loaded, to an image network."""
    network.concepts = ConceptLayers(architecture, side // 14)


class ConceptLayers(nn.Module):
    """See the module."""

    positions: Tensor

    def __init__(self, architecture: Architecture, grid: int) -> None:
        """
        Args:
            grid: side of the image encoder's map, cells.
        """
        super().__init__()
        sizes, width = architecture.concepts, architecture.neck
        assert sizes is not None
        self.grid = grid
        self.neck = _Neck(architecture.width, width)
        self.text_encoder = _TextEncoder(sizes)
        self.text_projection = nn.Linear(sizes.text_width, width)
        self.geometry_encoder = _GeometryEncoder(width, sizes)
        self.detr_encoder = _Encoder(width, sizes)
        self.detr_decoder = _Decoder(width, sizes, grid)
        self.mask_decoder = _MaskDecoder(width, sizes)
        self.dot_product_scoring = _Scoring(width, sizes)
        self.register_buffer("positions", sine_positions(grid, width), persistent=False)

    def read(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B,T] tokens and which of them count -> [B,T,C] features."""
        features: Tensor = self.text_projection(self.text_encoder(input_ids, attention_mask))
        return features

    def forward(
        self, backbone_features: Tensor, text_features: Tensor, text_mask: Tensor, boxes: Tensor, box_labels: Tensor
    ) -> Detections:
        """
        Args:
            backbone_features: [N,C,g,g]; N is B or 1.
            text_features, text_mask: [B,T,C] and [B,T].
            boxes, box_labels: [B,E,4] cx, cy, w, h in 0..1, and [B,E]: 1, 0, or -10 for nothing. E may be 0.
        """
        maps = self.neck(backbone_features)
        return self.detect(maps, text_features, text_mask, boxes, box_labels)

    def detect(
        self, maps: list[Tensor], text_features: Tensor, text_mask: Tensor, boxes: Tensor, box_labels: Tensor
    ) -> Detections:
        """As ``forward``, with the neck's maps: [N,C,4g,4g], [N,C,2g,2g], [N,C,g,g]."""
        prompt, bias, counts = self.prompt(maps[-1], text_features, text_mask, boxes, box_labels)
        image = self.detr_encoder(maps[-1].flatten(2).transpose(1, 2), self.positions, prompt, bias)
        queries, corners, presence = self.detr_decoder(image, self.positions, prompt, bias)
        logits = self.dot_product_scoring(queries, prompt, counts)
        masks = self.mask_decoder(queries, maps, image, prompt, bias)
        return Detections(logits, presence, corners, masks)

    def prompt(
        self, coarse: Tensor, text_features: Tensor, text_mask: Tensor, boxes: Tensor, box_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Words and exemplars together: [B,P,C], the bias [B,1,1,P] of attention to them, and [B,P] 1 if one counts."""
        # One box more, of nothing: without any some operators would have nothing to do, which not all runtimes like.
        boxes = functional.pad(boxes, (0, 0, 0, 1))
        box_labels = functional.pad(box_labels, (0, 1), value=PADDING)
        given = (box_labels != PADDING).to(text_features.dtype)
        examples, counts = self.geometry_encoder(coarse, self.positions, boxes, box_labels, given)
        # Without an exemplar the reference leaves out the token that stands for all of them.
        counts = counts * (given.sum(1, keepdim=True) > 0)
        counts = torch.cat([text_mask.to(text_features.dtype), counts], dim=1)
        prompt = torch.cat([text_features, examples], dim=1)
        return prompt, _bias(counts), counts


def _bias(counts: Tensor) -> Tensor:
    """[B,P] -> [B,1,1,P], which takes all weight from what does not count."""
    return ((1 - counts) * BLOCKED)[:, None, None]


class _Neck(nn.Module):
    """[N,W,g,g] -> three maps of ``width`` channels, with 4, 2 and 1 cells for each of the input."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.fpn_layers = nn.ModuleList(_NeckLayer(inputs, width, doublings) for doublings in (2, 1, 0))

    def forward(self, features: Tensor) -> list[Tensor]:
        return [layer(features) for layer in self.fpn_layers]


class _NeckLayer(nn.Module):
    def __init__(self, inputs: int, width: int, doublings: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for number in range(doublings):
            steps += [nn.GELU()] if number else []
            steps.append(nn.ConvTranspose2d(inputs, inputs // 2, 2, 2))
            inputs //= 2
        self.scale_layers = nn.Sequential(*steps)
        self.proj1 = nn.Conv2d(inputs, width, 1)
        self.proj2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        mapped: Tensor = self.proj2(self.proj1(self.scale_layers(features)))
        return mapped


# -- words -------------------------------------------------------------------------------------------------------


class _TextEncoder(nn.Module):
    def __init__(self, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.text_model = _TextModel(sizes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        read: Tensor = self.text_model(input_ids, attention_mask)
        return read


class _TextModel(nn.Module):
    def __init__(self, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.embeddings: Any = nn.Module()
        self.embeddings.token_embedding = nn.Embedding(sizes.words, sizes.text_width)
        self.embeddings.position_embedding = nn.Embedding(sizes.tokens, sizes.text_width)
        self.encoder = Layers(
            TextLayer(sizes.text_width, sizes.text_heads, sizes.text_hidden) for _ in range(sizes.text_layers)
        )
        self.final_layer_norm = nn.LayerNorm(sizes.text_width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """A token sees itself and those before it."""
        state: Tensor = self.embeddings.token_embedding(input_ids) + self.embeddings.position_embedding.weight
        count = input_ids.shape[1]
        later = torch.ones(count, count, dtype=state.dtype, device=state.device).triu(1) * BLOCKED
        bias = later + _bias(attention_mask.to(state.dtype))
        for layer in self.encoder.layers:
            state = layer(state, bias)
        read: Tensor = self.final_layer_norm(state)
        return read


# -- exemplars ---------------------------------------------------------------------------------------------------


class _GeometryEncoder(nn.Module):
    def __init__(self, width: int, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.label_embed = nn.Embedding(2, width)
        self.cls_embed = nn.Embedding(1, width)
        self.boxes_direct_project = nn.Linear(4, width)
        self.boxes_pool_project = nn.Conv2d(width, width, _ROI)
        self.boxes_pos_enc_project = nn.Linear(width + 2, width)
        self.vision_layer_norm = nn.LayerNorm(width)
        self.final_proj = nn.Linear(width, width)
        self.prompt_layer_norm = nn.LayerNorm(width)
        self.layers: Any = nn.ModuleList(
            FusingLayer(width, sizes.heads, sizes.hidden) for _ in range(sizes.geometry_layers)
        )
        self.output_layer_norm = nn.LayerNorm(width)

    def forward(
        self, coarse: Tensor, positions: Tensor, boxes: Tensor, labels: Tensor, given: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            coarse: [N,C,g,g].
            given: [B,E], 1 where a box counts.

        Returns:
            [B,E+1,C], one token for each box and one for all of them, and [B,E+1], 1 where one counts.
        """
        image = coarse.flatten(2).transpose(1, 2)
        summary = self.cls_embed.weight.expand(boxes.shape[0], 1, -1)
        state = torch.cat([self._boxes(coarse, boxes, labels), summary], dim=1)
        counts = functional.pad(given, (0, 1), value=1.0)
        state = self.prompt_layer_norm(self.final_proj(state))
        bias = _bias(counts)
        for layer in self.layers:
            state = layer.attend_image(state, bias, image, positions)
        return self.output_layer_norm(state), counts

    def _boxes(self, coarse: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        normal = self.vision_layer_norm(coarse.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = roi_align(normal, box_edges(boxes) * coarse.shape[-1], _ROI)  # [B,E,C,7,7]
        # The convolution has one place: a matrix product.
        project = self.boxes_pool_project
        found = functional.linear(pooled.flatten(2), project.weight.flatten(1), project.bias)
        half = coarse.shape[1] // 2
        across, down = waves(boxes[..., 0], half), waves(boxes[..., 1], half)
        places = torch.cat([down, across, boxes[..., 3:], boxes[..., 2:3]], dim=-1)
        found = found + self.boxes_direct_project(boxes) + self.boxes_pos_enc_project(places)
        labelled: Tensor = found + self.label_embed(labels.clamp(min=0))
        return labelled


# -- the detector ------------------------------------------------------------------------------------------------


class _Encoder(nn.Module):
    """The image as the words and exemplars see it."""

    def __init__(self, width: int, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(
            FusingLayer(width, sizes.heads, sizes.hidden) for _ in range(sizes.encoder_layers)
        )

    def forward(self, image: Tensor, positions: Tensor, prompt: Tensor, bias: Tensor) -> Tensor:
        """[N,cells,C] image and [B,P,C] prompt -> [B,cells,C]."""
        for layer in self.layers:
            image = layer.attend_prompt(image, positions, prompt, bias)
        return image


class _Decoder(nn.Module):
    def __init__(self, width: int, sizes: ConceptArchitecture, grid: int) -> None:
        super().__init__()
        self._grid, self._width = grid, width
        self.layers = nn.ModuleList(DecoderLayer(width, sizes.heads, sizes.hidden) for _ in range(sizes.decoder_layers))
        self.output_layer_norm = nn.LayerNorm(width)
        self.box_head = _Mlp(width, width, width, 4)
        self.query_embed = nn.Embedding(sizes.queries, width)
        self.reference_points = nn.Embedding(sizes.queries, 4)
        self.presence_token = nn.Embedding(1, width)
        self.presence_head = _Mlp(width, width, width, 1)
        self.presence_layer_norm = nn.LayerNorm(width)
        self.ref_point_head = _Mlp(2 * width, width, width)
        self.box_rpb_embed_x = _Mlp(2, width, sizes.heads)
        self.box_rpb_embed_y = _Mlp(2, width, sizes.heads)

    def forward(self, image: Tensor, positions: Tensor, prompt: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B,Q,C] queries, [B,Q,4] xyxy in 0..1, and [B,1] presence logits."""
        rows = image.shape[0]
        boxes = self.reference_points.weight.sigmoid()[None].expand(rows, -1, -1)
        # The first query stands for the concept's presence; it has no place.
        state = torch.cat([self.presence_token.weight, self.query_embed.weight])[None].expand(rows, -1, -1)
        for layer in self.layers:
            sine = torch.cat([waves(boxes[..., axis], self._width // 2) for axis in (1, 0, 2, 3)], dim=-1)
            places = functional.pad(self.ref_point_head(sine), (0, 0, 1, 0))
            near = functional.pad(self._near(boxes), (0, 0, 1, 0))
            state = layer(state, places, prompt, bias, image, positions, near)
            queries = self.output_layer_norm(state[:, 1:])
            boxes = (self.box_head(queries) + inverse_sigmoid(boxes)).sigmoid()
        presence = self.presence_head(self.presence_layer_norm(state[:, :1]))[..., 0]
        return queries, box_edges(boxes), presence.clamp(-MOST_PRESENCE, MOST_PRESENCE)

    def _near(self, boxes: Tensor) -> Tensor:
        """[B,Q,4] boxes -> [B,heads,Q,cells]: how much each cell counts, by its distance from the edges."""
        edges = box_edges(boxes)
        down = self.box_rpb_embed_y(place_bias(edges[..., 1::2], self._grid))
        across = self.box_rpb_embed_x(place_bias(edges[..., 0::2], self._grid))
        both = down.permute(0, 3, 1, 2)[..., None] + across.permute(0, 3, 1, 2)[..., None, :]
        near: Tensor = both.flatten(3)
        return near


class _Mlp(nn.Module):
    """Linear layers of these widths with ReLU in between."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self._depth = len(widths) - 1
        for number in range(self._depth):
            self.add_module(f"layer{number + 1}", nn.Linear(widths[number], widths[number + 1]))

    def forward(self, state: Tensor) -> Tensor:
        for number in range(1, self._depth + 1):
            layer: Any = self.get_submodule(f"layer{number}")
            state = layer(functional.relu(state) if number > 1 else state)
        return state


class _Scoring(nn.Module):
    def __init__(self, width: int, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.text_mlp = _Mlp(width, sizes.hidden, width)
        self.text_mlp_out_norm = nn.LayerNorm(width)
        self.text_proj = nn.Linear(width, width)
        self.query_proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, prompt: Tensor, counts: Tensor) -> Tensor:
        """[B,Q]: how well each query fits the mean of the prompt."""
        prompt = self.text_mlp_out_norm(self.text_mlp(prompt) + prompt)
        mean = (prompt * counts[..., None]).sum(1) / counts.sum(1, keepdim=True).clamp(min=1.0)
        fit = self.query_proj(queries) @ self.text_proj(mean)[..., None]
        logits: Tensor = fit[..., 0] * queries.shape[-1] ** -0.5
        return logits.clamp(-_MOST_LOGIT, _MOST_LOGIT)


class _MaskDecoder(nn.Module):
    def __init__(self, width: int, sizes: ConceptArchitecture) -> None:
        super().__init__()
        self.pixel_decoder: Any = nn.Module()
        self.pixel_decoder.conv_layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.pixel_decoder.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, width) for _ in range(2))
        self.mask_embedder = Layers(nn.Linear(width, width) for _ in range(3))
        self.instance_projection = nn.Conv2d(width, width, 1)
        self.prompt_cross_attn = Attention(width, sizes.heads)
        self.prompt_cross_attn_norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor, maps: list[Tensor], image: Tensor, prompt: Tensor, bias: Tensor) -> Tensor:
        """[B,Q,C] queries -> [B,Q,4g,4g] logits."""
        return torch.einsum("bqc,bchw->bqhw", self.embed(queries), self.pixels(maps, image, prompt, bias))

    def embed(self, queries: Tensor) -> Tensor:
        """[B,Q,C] -> [B,Q,C], by which :meth:`pixels` are multiplied."""
        first, second, third = self.mask_embedder.layers
        embedded: Tensor = third(functional.relu(second(functional.relu(first(queries)))))
        return embedded

    def pixels(self, maps: list[Tensor], image: Tensor, prompt: Tensor, bias: Tensor) -> Tensor:
        """[B,C,4g,4g]."""
        image = image + self.prompt_cross_attn(self.prompt_cross_attn_norm(image), prompt, prompt, bias)
        state = image.transpose(1, 2).reshape(image.shape[0], image.shape[2], *maps[-1].shape[2:])
        decoder = self.pixel_decoder
        for finer, convolve, norm in zip(maps[-2::-1], decoder.conv_layers, decoder.norms, strict=True):
            state = functional.interpolate(state, scale_factor=2.0, mode="nearest") + finer
            state = functional.relu(norm(convolve(state)))
        projected: Tensor = self.instance_projection(state)
        return projected
