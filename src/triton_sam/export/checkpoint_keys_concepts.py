"""Names in official SAM 3 checkpoints of what finds concepts -> those of our layers.

Keys that no rule matches keep their prefix, and nothing needs them: points as examples, which no published predictor
takes, and tables that are computed here.
"""

from __future__ import annotations

from collections.abc import Container

_Rules = tuple[tuple[str, str], ...]

#: Without this part the others find nothing.
_MARK = "concepts.detr_decoder.query_embed.weight"

#: Hugging Face's whole model, after the image encoder's trunk, which is shared, has its name.
HUB_CONCEPTS: _Rules = (
    (r"^detector_model\.vision_encoder\.neck\.", "concepts.neck."),
    (r"^detector_model\.", "concepts."),
)

_NECK = r"^detector\.backbone\.vision_backbone\.convs\.(\d+)\."
_TO_NECK = r"concepts.neck.fpn_layers.\1."
_WORDS = r"^detector\.backbone\.language_backbone\."
_TEXT = r"^(concepts\.text_encoder\.)"
_TEXT_LAYER = r"^(concepts\.text_encoder\.text_model\.encoder\.layers\.\d+\.)"
_DECODER = r"^detector\.transformer\.decoder\."
_TO_DECODER = "concepts.detr_decoder."
_LAYER = r"^(concepts\.(?:geometry_encoder|detr_encoder|detr_decoder)\.layers\.\d+\.)"
_FUSING_LAYER = r"^(concepts\.(?:geometry_encoder|detr_encoder)\.layers\.\d+\.)"
_DECODER_LAYER = r"^(concepts\.detr_decoder\.layers\.\d+\.)"
_HEAD = (
    r"^(concepts\.(?:detr_decoder\.(?:presence_head|box_head|ref_point_head|box_rpb_embed_[xy])"
    r"|dot_product_scoring\.text_mlp)\.)"
)
_MASKS = r"^detector\.segmentation_head\."
_TO_MASKS = "concepts.mask_decoder."

META_CONCEPTS: _Rules = (
    # the neck of the detector, beside that of the tracker
    (_NECK + r"dconv_2x2(?:_0)?\.", _TO_NECK + "scale_layers.0."),
    (_NECK + r"dconv_2x2_1\.", _TO_NECK + "scale_layers.2."),
    (_NECK + r"conv_1x1\.", _TO_NECK + "proj1."),
    (_NECK + r"conv_3x3\.", _TO_NECK + "proj2."),
    # words
    (_WORDS + r"resizer\.", "concepts.text_projection."),
    (_WORDS + r"encoder\.", "concepts.text_encoder."),
    (_TEXT + r"token_embedding\.", r"\1text_model.embeddings.token_embedding."),
    (_TEXT + r"positional_embedding$", r"\1text_model.embeddings.position_embedding.weight"),
    (_TEXT + r"ln_final\.", r"\1text_model.final_layer_norm."),
    (_TEXT + r"text_projection$", r"\1text_projection.weight"),
    (_TEXT + r"transformer\.resblocks\.", r"\1text_model.encoder.layers."),
    (_TEXT_LAYER + r"attn\.", r"\1self_attn."),
    (_TEXT_LAYER + r"ln_", r"\1layer_norm"),
    (_TEXT_LAYER + r"mlp\.c_fc\.", r"\1mlp.fc1."),
    (_TEXT_LAYER + r"mlp\.c_proj\.", r"\1mlp.fc2."),
    # exemplars
    (r"^detector\.geometry_encoder\.encode\.", "concepts.geometry_encoder.layers."),
    (r"^detector\.geometry_encoder\.encode_norm\.", "concepts.geometry_encoder.output_layer_norm."),
    (r"^detector\.geometry_encoder\.img_pre_norm\.", "concepts.geometry_encoder.vision_layer_norm."),
    (r"^detector\.geometry_encoder\.norm\.", "concepts.geometry_encoder.prompt_layer_norm."),
    (r"^detector\.geometry_encoder\.(boxes_|cls_embed|label_embed|final_proj)", r"concepts.geometry_encoder.\1"),
    # the detector
    (r"^detector\.transformer\.encoder\.layers\.", "concepts.detr_encoder.layers."),
    (_DECODER + r"(layers|query_embed|reference_points|presence_token|ref_point_head)\.", _TO_DECODER + r"\1."),
    (_DECODER + r"norm\.", _TO_DECODER + "output_layer_norm."),
    (_DECODER + r"presence_token_head\.", _TO_DECODER + "presence_head."),
    (_DECODER + r"presence_token_out_norm\.", _TO_DECODER + "presence_layer_norm."),
    (_DECODER + r"bbox_embed\.", _TO_DECODER + "box_head."),
    (_DECODER + r"boxRPB_embed_", _TO_DECODER + "box_rpb_embed_"),
    (_LAYER + r"linear", r"\1mlp.fc"),
    (_FUSING_LAYER + r"cross_attn_image\.", r"\1cross_attn."),
    (_FUSING_LAYER + r"norm", r"\1layer_norm"),
    (_DECODER_LAYER + r"cross_attn\.", r"\1vision_cross_attn."),
    (_DECODER_LAYER + r"ca_text\.", r"\1text_cross_attn."),
    (_DECODER_LAYER + r"catext_norm\.", r"\1text_cross_attn_layer_norm."),
    (_DECODER_LAYER + r"norm1\.", r"\1vision_cross_attn_layer_norm."),
    (_DECODER_LAYER + r"norm2\.", r"\1self_attn_layer_norm."),
    (_DECODER_LAYER + r"norm3\.", r"\1mlp_layer_norm."),
    (_LAYER + r"(\w+)\.out_proj\.", r"\1\2.o_proj."),
    # scores
    (r"^detector\.dot_prod_scoring\.prompt_mlp\.out_norm\.", "concepts.dot_product_scoring.text_mlp_out_norm."),
    (r"^detector\.dot_prod_scoring\.prompt_mlp\.", "concepts.dot_product_scoring.text_mlp."),
    (r"^detector\.dot_prod_scoring\.prompt_proj\.", "concepts.dot_product_scoring.text_proj."),
    (r"^detector\.dot_prod_scoring\.hs_proj\.", "concepts.dot_product_scoring.query_proj."),
    (_HEAD + r"layers\.0\.", r"\1layer1."),
    (_HEAD + r"layers\.1\.", r"\1layer2."),
    (_HEAD + r"layers\.2\.", r"\1layer3."),
    # masks
    (_MASKS + r"pixel_decoder\.", _TO_MASKS + "pixel_decoder."),
    (_MASKS + r"(?:mask_predictor\.)?mask_embed\.", _TO_MASKS + "mask_embedder."),
    (_MASKS + r"instance_seg_head\.", _TO_MASKS + "instance_projection."),
    (_MASKS + r"semantic_seg_head\.", _TO_MASKS + "semantic_projection."),
    (_MASKS + r"cross_attend_prompt\.out_proj\.", _TO_MASKS + "prompt_cross_attn.o_proj."),
    (_MASKS + r"cross_attend_prompt\.", _TO_MASKS + "prompt_cross_attn."),
    (_MASKS + r"cross_attn_norm\.", _TO_MASKS + "prompt_cross_attn_norm."),
)


def finds_concepts(names: Container[str]) -> bool:
    """Whether these names, which the rules have made, are of a checkpoint that finds concepts."""
    return _MARK in names
