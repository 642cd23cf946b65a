"""The network: transformers' ``Sam3Model`` and the image part of its ``Sam3TrackerModel``, small, on one backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Sam3Config, Sam3Model, Sam3TrackerConfig, Sam3TrackerModel
from transformers.models.sam3 import modeling_sam3

from training.concepts.words import BEGIN, END, TOKENS, vocabulary

SIDE, PATCH = 336, 14
GRID = SIDE // PATCH
MASK_SIDE = 4 * GRID
#: The label of a box that is only there to fill up.
PADDING = -10
#: How sharply each head of the decoder's attention to the image keeps to a query's box, at first.
_REACH = (16.0, 16.0, 12.0, 8.0, 4.0, 0.0)
_PREFIX, _NECK = "concepts.", "vision_encoder.neck."
#: Parts of the architecture that images of this size do not use; zeros, so that the file is smaller.
_UNUSED = ("neck.fpn_layers.3.", "pixel_decoder.conv_layers.2.", "pixel_decoder.norms.2.")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the toy; where nothing is said, those of SAM 3 hold."""

    width: int = 160
    layers: int = 6
    heads: int = 5
    global_blocks: tuple[int, ...] = (1, 3, 5)
    window: int = 12
    neck: int = 96
    tracker_mlp: int = 768
    text_width: int = 128
    text_layers: int = 2
    text_heads: int = 4
    text_mlp: int = 512
    attention_heads: int = 6
    ffn: int = 384
    geometry_layers: int = 1
    encoder_layers: int = 3
    decoder_layers: int = 4
    queries: int = 50


SIZES = Sizes()


class Found(NamedTuple):
    """What the detector says after each of its L layers, of B concepts and Q queries.

    Attributes:
        logits: [L,B,Q].
        boxes: [L,B,Q,4], cxcywh in 0..1.
        presence: [L,B].
        queries: [L,B,Q,C], from which masks are made.
        fused: [B,g*g,C], the image as the words see it.
        prompt, prompt_mask: [B,T,C] and [B,T].
    """

    logits: Tensor
    boxes: Tensor
    presence: Tensor
    queries: Tensor
    fused: Tensor
    prompt: Tensor
    prompt_mask: Tensor


class ConceptNetwork(nn.Module):
    """Both networks; the words' one takes its image features from the clicks' one."""

    def __init__(self, sizes: Sizes = SIZES) -> None:
        super().__init__()
        self.tracker: Any = Sam3TrackerModel(tracker_config(sizes))
        self.detector: Any = Sam3Model(detector_config(sizes))
        self.detector.vision_encoder.backbone = self.tracker.vision_encoder.backbone
        table = self.tracker.prompt_encoder.shared_embedding.positional_embedding
        self.tracker.shared_image_embedding.positional_embedding.copy_(table)
        # Without torchvision, and without copies from the processor, so that a CUDA graph can have it.
        self.detector.geometry_encoder._encode_boxes = self._encode_boxes
        _initialise(self)

    # -- images ------------------------------------------------------------------------------------------------

    def backbone(self, images: Tensor) -> Tensor:
        """[N,3,336,336] in [0,1] -> [N,C,24,24]."""
        features = self.tracker.vision_encoder.backbone((images - 0.5) / 0.5).last_hidden_state
        return features.transpose(1, 2).unflatten(2, (GRID, GRID))

    # -- words and examples ------------------------------------------------------------------------------------

    def text(self, ids: Tensor) -> Tensor:
        """[B,32] tokens -> [B,32,C]; what follows the end is of no use.

        A token only sees those before it, so padding needs no mask.
        """
        return self.detector.get_text_features(input_ids=ids, return_dict=True).pooler_output

    def pyramid(self, features: Tensor) -> tuple[list[Tensor], Tensor]:
        """The detector's maps [N,C,4g,4g], [N,C,2g,2g], [N,C,g,g], and the positions [N,C,g,g] of the last."""
        maps, positions = self.detector.vision_encoder.neck(features)
        return list(maps[:-1]), positions[2]

    def find(
        self, image: Tensor, positions: Tensor, text: Tensor, text_mask: Tensor, boxes: Tensor, labels: Tensor
    ) -> Found:
        """As ``Sam3Model.forward``, with what all layers of the decoder say.

        Args:
            image, positions: the last map of :meth:`pyramid` and its positions, one row for each concept.
            text, text_mask: [B,32,C] and [B,32].
            boxes, labels: [B,E,4] cxcywh in 0..1, and [B,E], 1, 0 or PADDING.
        """
        model = self.detector
        prompt, mask = text, text_mask.bool()
        if boxes.shape[1]:
            given = labels != PADDING
            geometry = model.geometry_encoder(boxes, given, labels.clamp(min=0), [image], [positions])
            prompt = torch.cat([prompt, geometry.last_hidden_state.to(prompt.dtype)], 1)
            # Without a box of its own, a row has nothing of this, as when no row has one.
            mask = torch.cat([mask, geometry.attention_mask.bool() & given.any(1, keepdim=True)], 1)
        fused, places = (one.flatten(2).transpose(1, 2) for one in (image, positions))
        for layer in model.detr_encoder.layers:
            fused = layer(fused, prompt, places, mask[:, None, None])
        decoded = model.detr_decoder(
            fused,
            prompt,
            places,
            mask,
            torch.tensor([[GRID, GRID]]),
        )
        states = decoded.intermediate_hidden_states
        offsets = model.detr_decoder.box_head(states)
        found = (modeling_sam3.inverse_sigmoid(decoded.reference_boxes) + offsets).float().sigmoid()
        logits = model.dot_product_scoring(states, prompt, mask)[..., 0]
        presence = decoded.presence_logits[..., 0]
        return Found(logits.float(), found, presence.float(), states, fused, prompt, mask)

    def _encode_boxes(self, boxes: Tensor, mask: Tensor, labels: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """What ``Sam3GeometryEncoder`` knows of [B,E,4] boxes: their numbers, what is in them, and where they are."""
        encoder = self.detector.geometry_encoder
        centre, size = boxes.split(2, -1)
        corners = torch.cat([centre - size / 2, centre + size / 2], -1) * GRID
        inside = roi_align(image, corners, encoder.roi_size)
        pooled = encoder.boxes_pool_project(inside.flatten(0, 1)).reshape(*boxes.shape[:2], -1)
        numbers = encoder._encode_box_coordinates(*(one.flatten() for one in boxes.unbind(-1)))
        places = encoder.boxes_pos_enc_project(numbers.reshape(*boxes.shape[:2], -1))
        return encoder.label_embed(labels) + encoder.boxes_direct_project(boxes) + pooled + places, mask

    def pixels(self, maps: list[Tensor], fused: Tensor, prompt: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The map [B,C,4g,4g] with which queries are multiplied, and logits [B,4g,4g] of the whole concept."""
        decoder = self.detector.mask_decoder
        kept: list[Tensor] = []
        hook = decoder.instance_projection.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        try:
            whole = decoder(fused[:, :1], maps, fused, prompt, prompt_mask).semantic_seg
        finally:
            hook.remove()
        return kept[0], whole[:, 0]

    def masks(self, queries: Tensor, pixels: Tensor) -> Tensor:
        """[B,Q,C] and [B,C,h,w] -> logits [B,Q,h,w]."""
        return torch.einsum("bqc,bchw->bqhw", self.detector.mask_decoder.mask_embedder(queries), pixels)

    # -- clicks and boxes ----------------------------------------------------------------------------------------

    def click_maps(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tracker's embeddings, finest first: [N,C/8,4g,4g], [N,C/4,2g,2g], [N,C,g,g]."""
        maps, _ = self.tracker.vision_encoder.neck(features)
        decoder = self.tracker.mask_decoder
        nothing = self.tracker.no_memory_embedding.reshape(1, -1, 1, 1)
        return decoder.conv_s0(maps[0]), decoder.conv_s1(maps[1]), maps[2] + nothing

    def click(
        self, maps: tuple[Tensor, Tensor, Tensor], points: Tensor, labels: Tensor, masks: Tensor | None, given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            maps: of :meth:`click_maps`, one row for each prompt.
            points, labels: [B,P,2] pixels of the 336 x 336 image, and [B,P] with 2 and 3 for the corners of a box.
            masks, given: [B,1,96,96] logits of an earlier answer, and [B] where they count.

        Returns:
            [B,4,96,96] logits, [B,4] predicted IoU and [B] whether there is an object; the single mask comes first.
        """
        encoder, decoder = self.tracker.prompt_encoder, self.tracker.mask_decoder
        sparse, dense = encoder(points[:, None], labels[:, None], None, None)
        if masks is not None:
            dense = torch.where(given[:, None, None, None], encoder.mask_embed(masks), dense)
        positions = self.tracker.get_image_wide_positional_embeddings()
        # In evaluation this method chooses between the single mask and the three others; training needs all of them.
        decoder.eval()
        decoder._dynamic_multimask_via_stability = lambda masks, scores: (masks, scores)
        try:
            logits, scores, _, there = decoder(
                maps[2], positions.expand(len(points), -1, -1, -1), sparse, dense, False, list(maps[:2])
            )
        finally:
            del decoder._dynamic_multimask_via_stability
        return logits[:, 0], scores[:, 0], there[:, 0, 0]


def tracker_config(sizes: Sizes) -> Any:
    """Of ``Sam3TrackerModel``."""
    return Sam3TrackerConfig(
        vision_config=_vision(sizes),
        prompt_encoder_config={"image_size": SIDE, "hidden_size": sizes.neck},
        mask_decoder_config={
            "hidden_size": sizes.neck,
            "mlp_dim": sizes.tracker_mlp,
            "iou_head_hidden_dim": sizes.neck,
        },
    )


def detector_config(sizes: Sizes) -> Any:
    """Of ``Sam3Model``; without dropout, which would only keep so small a network from learning."""
    tokens = vocabulary()
    common = {"hidden_size": sizes.neck, "num_attention_heads": sizes.attention_heads, "dropout": 0.0}
    layered = {**common, "intermediate_size": sizes.ffn}
    return Sam3Config(
        vision_config=_vision(sizes),
        text_config={
            "model_type": "clip_text_model",
            "vocab_size": len(tokens),
            "hidden_size": sizes.text_width,
            "intermediate_size": sizes.text_mlp,
            "projection_dim": sizes.text_width,
            "num_hidden_layers": sizes.text_layers,
            "num_attention_heads": sizes.text_heads,
            "max_position_embeddings": TOKENS,
            "hidden_act": "gelu",
            "bos_token_id": tokens.index(BEGIN),
            "eos_token_id": tokens.index(END),
            "pad_token_id": tokens.index(END),
        },
        geometry_encoder_config={**layered, "num_layers": sizes.geometry_layers},
        detr_encoder_config={**layered, "num_layers": sizes.encoder_layers},
        detr_decoder_config={**layered, "num_layers": sizes.decoder_layers, "num_queries": sizes.queries},
        mask_decoder_config=common,
    )


def _vision(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_type": "sam3_vision_model",
        "fpn_hidden_size": sizes.neck,
        "backbone_feature_sizes": [[GRID * scale, GRID * scale] for scale in (4, 2, 1)],
        "backbone_config": {
            "model_type": "sam3_vit_model",
            "hidden_size": sizes.width,
            "intermediate_size": sizes.width * 37 // 8,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "global_attn_indexes": list(sizes.global_blocks),
            "window_size": sizes.window,
            "image_size": SIDE,
        },
    }


def network_weights(network: ConceptNetwork) -> dict[str, Tensor]:
    """The weights under the names of a served ``network.safetensors``."""
    weights = dict(network.tracker.state_dict())
    for name, one in network.detector.state_dict().items():
        if name.startswith(_NECK):
            weights[f"{_PREFIX}neck.{name.removeprefix(_NECK)}"] = one
        elif not name.startswith("vision_encoder."):
            weights[_PREFIX + name] = one
    return weights


def load_weights(network: ConceptNetwork, weights: dict[str, Tensor]) -> None:
    """The inverse of :func:`network_weights`."""
    network.tracker.load_state_dict({name: one for name, one in weights.items() if not name.startswith(_PREFIX)})
    detector = dict(network.detector.state_dict())
    for name, one in weights.items():
        if name.startswith(f"{_PREFIX}neck."):
            detector[_NECK + name.removeprefix(f"{_PREFIX}neck.")] = one
        elif name.startswith(_PREFIX):
            detector[name.removeprefix(_PREFIX)] = one
    for name in detector:
        if name.startswith("vision_encoder.backbone."):
            detector[name] = weights[name]
    network.detector.load_state_dict(detector)


def _initialise(network: ConceptNetwork) -> None:
    """Weights of a size that suits narrow layers, and queries that begin as a grid of boxes."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_uniform_(module.weight, a=1)
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    decoder = network.detector.detr_decoder
    with torch.no_grad():
        last = decoder.box_head.layer3
        last.weight.zero_()
        count = decoder.query_embed.weight.shape[0]
        side = int(count**0.5)
        places = torch.arange(count)
        row, column = (places // side).clamp(max=side - 1), places % side
        boxes = torch.stack([column + 0.5, row + 0.5, torch.full_like(row, 1.2), torch.full_like(row, 1.2)], 1) / side
        decoder.reference_points.weight.copy_(modeling_sam3.inverse_sigmoid(boxes))
        nn.init.normal_(decoder.query_embed.weight, std=0.5)
        # Queries begin with a look into their boxes: what lies outside counts less, by head. The numbers that come in
        # are the signed distances from a box's two sides.
        for sides in (decoder.box_rpb_embed_x, decoder.box_rpb_embed_y):
            sides.layer1.weight[:2] = torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
            sides.layer2.weight[:, :2] = -torch.tensor(_REACH)[:, None]
        # Scores begin at about one in ten, whatever is asked.
        scoring = network.detector.dot_product_scoring
        for part, offset in ((scoring.text_proj, 1.0), (scoring.query_proj, -0.2)):
            part.weight.mul_(0.1)
            part.bias.fill_(offset)
        for name, parameter in network.named_parameters():
            if any(part in name for part in _UNUSED):
                parameter.zero_().requires_grad_(False)


def plain_masks() -> None:
    """Lets transformers make attention masks without a look at what they hold: that would be to wait for the device."""
    modeling_sam3.create_bidirectional_mask = _attention_mask


def _attention_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """[B,T] -> [B,1,1,T]."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None]


def roi_align(features: Tensor, boxes: Tensor, size: int) -> Tensor:
    """torchvision's ``roi_align`` with its defaults, as two products: averages of bilinear samples are separable.

    Args:
        features: [B,C,h,w].
        boxes: [B,E,4], xyxy in cells.

    Returns:
        [B,E,C,size,size].
    """
    corners = boxes.float()
    rows = _samples(corners[..., 1], corners[..., 3], features.shape[2], size)
    columns = _samples(corners[..., 0], corners[..., 2], features.shape[3], size)
    taken = torch.einsum("beiy,bcyx,bejx->becij", rows, features.float(), columns)
    return taken.to(features.dtype)


def _samples(low: Tensor, high: Tensor, cells: int, size: int) -> Tensor:
    """Weights [B,E,size,cells] of cells in the averages that each of ``size`` parts of an interval takes."""
    most = -(-cells // size)
    length = (high - low).clamp(min=1.0)
    count = (length / size).ceil().clamp(min=1)[..., None, None]
    part = torch.arange(size, device=low.device)[:, None]
    number = torch.arange(most + 1, device=low.device)[None, :]
    places = low[..., None, None] + (part + (number + 0.5) / count) * (length[..., None, None] / size)
    counted = (number < count) & (places >= -1) & (places <= cells)
    places = places.clamp(0, cells - 1)
    grid = torch.arange(cells, device=low.device)
    weights = functional.relu(1 - (places[..., None] - grid).abs())
    return (weights * (counted / count)[..., None]).sum(-2)
