"""Meta's key names and shapes of what finds concepts in ``sam3.pt``, and what transformers' script makes of them.

Nothing here comes from the code under test.
"""

from __future__ import annotations

import re

from triton_sam.models.architecture import Architecture, ConceptArchitecture

Shapes = dict[str, tuple[int, ...]]


def _both(name: str, weight: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _attention(name: str, width: int) -> Shapes:
    """torch's own."""
    joint: Shapes = {f"{name}.in_proj_weight": (3 * width, width), f"{name}.in_proj_bias": (3 * width,)}
    return joint | _both(f"{name}.out_proj", (width, width))


def _feed(layer: str, width: int, hidden: int) -> Shapes:
    return _both(f"{layer}.linear1", (hidden, width)) | _both(f"{layer}.linear2", (width, hidden))


def _mlp(name: str, *widths: int) -> Shapes:
    found: Shapes = {}
    for number in range(len(widths) - 1):
        found |= _both(f"{name}.layers.{number}", (widths[number + 1], widths[number]))
    return found


def _text(sizes: ConceptArchitecture, width: int) -> Shapes:
    language, own = "detector.backbone.language_backbone", sizes.text_width
    found: Shapes = {
        f"{language}.encoder.token_embedding.weight": (sizes.words, own),
        f"{language}.encoder.positional_embedding": (sizes.tokens, own),
    }
    for number in range(sizes.text_layers):
        layer = f"{language}.encoder.transformer.resblocks.{number}"
        found |= _attention(f"{layer}.attn", own)
        found |= _both(f"{layer}.ln_1", (own,)) | _both(f"{layer}.ln_2", (own,))
        found |= _both(f"{layer}.mlp.c_fc", (sizes.text_hidden, own))
        found |= _both(f"{layer}.mlp.c_proj", (own, sizes.text_hidden))
    return found | _both(f"{language}.encoder.ln_final", (own,)) | _both(f"{language}.resizer", (width, own))


def _fusing_layers(name: str, count: int, width: int, hidden: int) -> Shapes:
    found: Shapes = {}
    for number in range(count):
        layer = f"{name}.{number}"
        found |= _attention(f"{layer}.self_attn", width) | _attention(f"{layer}.cross_attn_image", width)
        found |= _feed(layer, width, hidden)
        for part in (1, 2, 3):
            found |= _both(f"{layer}.norm{part}", (width,))
    return found


def _geometry(sizes: ConceptArchitecture, width: int) -> Shapes:
    name = "detector.geometry_encoder"
    found: Shapes = {f"{name}.label_embed.weight": (2, width), f"{name}.cls_embed.weight": (1, width)}
    found |= _both(f"{name}.boxes_direct_project", (width, 4))
    found |= _both(f"{name}.boxes_pool_project", (width, width, 7, 7))
    found |= _both(f"{name}.boxes_pos_enc_project", (width, width + 2))
    for part in ("img_pre_norm", "norm", "encode_norm"):
        found |= _both(f"{name}.{part}", (width,))
    found |= _both(f"{name}.final_proj", (width, width))
    return found | _fusing_layers(f"{name}.encode", sizes.geometry_layers, width, sizes.hidden)


def _decoder(sizes: ConceptArchitecture, width: int) -> Shapes:
    name = "detector.transformer.decoder"
    found: Shapes = {
        f"{name}.query_embed.weight": (sizes.queries, width),
        f"{name}.reference_points.weight": (sizes.queries, 4),
        f"{name}.presence_token.weight": (1, width),
    }
    for number in range(sizes.decoder_layers):
        layer = f"{name}.layers.{number}"
        for part in ("self_attn", "cross_attn", "ca_text"):
            found |= _attention(f"{layer}.{part}", width)
        for part in ("norm1", "norm2", "norm3", "catext_norm"):
            found |= _both(f"{layer}.{part}", (width,))
        found |= _feed(layer, width, sizes.hidden)
    found |= _both(f"{name}.norm", (width,)) | _both(f"{name}.presence_token_out_norm", (width,))
    found |= _mlp(f"{name}.presence_token_head", width, width, width, 1)
    found |= _mlp(f"{name}.bbox_embed", width, width, width, 4) | _mlp(
        f"{name}.ref_point_head", 2 * width, width, width
    )
    for axis in "xy":
        found |= _mlp(f"{name}.boxRPB_embed_{axis}", 2, width, sizes.heads)
    return found


def _heads(sizes: ConceptArchitecture, width: int) -> Shapes:
    scoring, masks = "detector.dot_prod_scoring", "detector.segmentation_head"
    found = _mlp(f"{scoring}.prompt_mlp", width, sizes.hidden, width)
    found |= _both(f"{scoring}.prompt_mlp.out_norm", (width,))
    found |= _both(f"{scoring}.prompt_proj", (width, width)) | _both(f"{scoring}.hs_proj", (width, width))
    for level in range(2):
        found |= _both(f"{masks}.pixel_decoder.conv_layers.{level}", (width, width, 3, 3))
        found |= _both(f"{masks}.pixel_decoder.norms.{level}", (width,))
    found |= _mlp(f"{masks}.mask_predictor.mask_embed", width, width, width, width)
    found |= _both(f"{masks}.instance_seg_head", (width, width, 1, 1))
    return found | _attention(f"{masks}.cross_attend_prompt", width) | _both(f"{masks}.cross_attn_norm", (width,))


def _neck(inputs: int, width: int) -> Shapes:
    neck = "detector.backbone.vision_backbone.convs"
    found: Shapes = {}
    for level, (name, wide) in enumerate((("dconv_2x2_0", inputs), ("dconv_2x2", inputs))):
        found |= {f"{neck}.{level}.{name}.weight": (wide, wide // 2, 2, 2), f"{neck}.{level}.{name}.bias": (wide // 2,)}
    second = f"{neck}.0.dconv_2x2_1"
    found |= {f"{second}.weight": (inputs // 2, inputs // 4, 2, 2), f"{second}.bias": (inputs // 4,)}
    for level in range(3):
        found |= _both(f"{neck}.{level}.conv_1x1", (width, inputs >> (2 - level), 1, 1))
        found |= _both(f"{neck}.{level}.conv_3x3", (width, width, 3, 3))
    return found


def concepts(architecture: Architecture) -> Shapes:
    """All that finds concepts; the image encoder's trunk, which clicks use too, is not among it."""
    sizes, width = architecture.concepts, architecture.neck
    assert sizes is not None
    found = _neck(architecture.width, width) | _text(sizes, width) | _geometry(sizes, width)
    found |= _fusing_layers("detector.transformer.encoder.layers", sizes.encoder_layers, width, sizes.hidden)
    return found | _decoder(sizes, width) | _heads(sizes, width)


def unused(architecture: Architecture) -> Shapes:
    """Parts of the detector that no instance depends on, or that no published predictor uses."""
    sizes, width = architecture.concepts, architecture.neck
    assert sizes is not None
    masks, geometry = "detector.segmentation_head", "detector.geometry_encoder"
    found = _both("detector.backbone.vision_backbone.convs.3.conv_1x1", (width, architecture.width, 1, 1))
    found |= _both("detector.backbone.vision_backbone.convs.3.conv_3x3", (width, width, 3, 3))
    found |= {"detector.backbone.language_backbone.encoder.text_projection": (sizes.text_width, 512)}
    found |= _both(f"{geometry}.points_direct_project", (width, 2))
    found |= _both(f"{geometry}.points_pool_project", (width, width))
    found |= _both(f"{geometry}.points_pos_enc_project", (width, width))
    found |= _both(f"{masks}.semantic_seg_head", (1, width, 1, 1))
    found |= _both(f"{masks}.pixel_decoder.conv_layers.2", (width, width, 3, 3))
    return found | _both(f"{masks}.pixel_decoder.norms.2", (width,))


_CHAIN = (
    ("detector.backbone.vision_backbone.convs", "neck.fpn_layers"),
    ("detector.backbone.language_backbone.encoder.transformer.resblocks", "text_encoder.text_model.encoder.layers"),
    ("detector.backbone.language_backbone.encoder.ln_final", "text_encoder.text_model.final_layer_norm"),
    (
        "detector.backbone.language_backbone.encoder.positional_embedding",
        "text_encoder.text_model.embeddings.position_embedding.weight",
    ),
    ("detector.backbone.language_backbone.encoder.", "text_encoder.text_model.embeddings."),
    ("detector.backbone.language_backbone.resizer", "text_projection"),
    ("detector.geometry_encoder.encode.", "geometry_encoder.layers."),
    ("detector.geometry_encoder.img_pre_norm", "geometry_encoder.vision_layer_norm"),
    ("detector.geometry_encoder.norm", "geometry_encoder.prompt_layer_norm"),
    ("detector.geometry_encoder.encode_norm", "geometry_encoder.output_layer_norm"),
    ("detector.transformer.encoder", "detr_encoder"),
    ("detector.transformer.decoder.presence_token_head", "detr_decoder.presence_head"),
    ("detector.transformer.decoder.presence_token_out_norm", "detr_decoder.presence_layer_norm"),
    ("detector.transformer.decoder.norm", "detr_decoder.output_layer_norm"),
    ("detector.transformer.decoder.bbox_embed", "detr_decoder.box_head"),
    ("detector.transformer.decoder", "detr_decoder"),
    ("boxRPB", "box_rpb"),
    ("detector.dot_prod_scoring.prompt_mlp.out_norm", "dot_product_scoring.text_mlp_out_norm"),
    ("detector.dot_prod_scoring.prompt_", "dot_product_scoring.text_"),
    ("detector.dot_prod_scoring.hs_proj", "dot_product_scoring.query_proj"),
    ("detector.segmentation_head.mask_predictor.mask_embed", "mask_decoder.mask_embedder"),
    ("detector.segmentation_head.instance_seg_head", "mask_decoder.instance_projection"),
    ("detector.segmentation_head.cross_attend_prompt", "mask_decoder.prompt_cross_attn"),
    ("detector.segmentation_head.cross_attn_norm", "mask_decoder.prompt_cross_attn_norm"),
    ("detector.segmentation_head.", "mask_decoder."),
    ("detector.", ""),
    ("dconv_2x2_1", "scale_layers.2"),
    ("dconv_2x2_0", "scale_layers.0"),
    ("dconv_2x2", "scale_layers.0"),
    ("conv_1x1", "proj1"),
    ("conv_3x3", "proj2"),
    (".attn.", ".self_attn."),
    (".ln_", ".layer_norm"),
    (".c_fc", ".fc1"),
    (".c_proj", ".fc2"),
    (".linear1", ".mlp.fc1"),
    (".linear2", ".mlp.fc2"),
)
_OF_DECODER_LAYERS = (
    ("norm1", "vision_cross_attn_layer_norm"),
    ("catext_norm", "text_cross_attn_layer_norm"),
    ("norm2", "self_attn_layer_norm"),
    ("norm3", "mlp_layer_norm"),
    (".cross_attn.", ".vision_cross_attn."),
    ("ca_text", "text_cross_attn"),
)


def converted(key: str) -> str:
    """A key's name in ``Sam3Model``, before joint matrices are split; its neck's without the image encoder's prefix."""
    for old, new in _CHAIN:
        key = key.replace(old, new)
    if key.startswith("detr_decoder.layers."):
        for old, new in _OF_DECODER_LAYERS:
            key = key.replace(old, new)
    elif re.search(r"(detr|geometry)_encoder\.layers\.", key):
        key = key.replace("cross_attn_image", "cross_attn").replace(".norm", ".layer_norm")
    if not key.startswith("text_encoder."):
        key = key.replace("out_proj", "o_proj")
    heads = r"((?:presence_head|box_head|ref_point_head|box_rpb_embed_[xy]|text_mlp)\.)layers\.(\d)"
    return re.sub(heads, lambda match: f"{match[1]}layer{int(match[2]) + 1}", key)
