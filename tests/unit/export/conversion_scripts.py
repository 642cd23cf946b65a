"""The renaming of transformers' own conversion scripts, chains of substring replacements, for official checkpoints.

Our table of patterns must agree with it key by key.
"""

from __future__ import annotations

import re

from triton_sam.models.architecture import Backbone

_SHARED_CHAIN = (
    ("iou_prediction_head.layers.0", "iou_prediction_head.proj_in"),
    ("iou_prediction_head.layers.1", "iou_prediction_head.layers.0"),
    ("iou_prediction_head.layers.2", "iou_prediction_head.proj_out"),
    ("mask_decoder.output_upscaling.0", "mask_decoder.upscale_conv1"),
    ("mask_decoder.output_upscaling.1", "mask_decoder.upscale_layer_norm"),
    ("mask_decoder.output_upscaling.3", "mask_decoder.upscale_conv2"),
    ("mask_downscaling.0", "mask_embed.conv1"),
    ("mask_downscaling.1", "mask_embed.layer_norm1"),
    ("mask_downscaling.3", "mask_embed.conv2"),
    ("mask_downscaling.4", "mask_embed.layer_norm2"),
    ("mask_downscaling.6", "mask_embed.conv3"),
    ("point_embeddings", "point_embed"),
    ("pe_layer.positional_encoding_gaussian_matrix", "shared_embedding.positional_embedding"),
)
_SAM1_CHAIN = (
    *_SHARED_CHAIN,
    ("image_encoder", "vision_encoder"),
    ("neck.0", "neck.conv1"),
    ("neck.1", "neck.layer_norm1"),
    ("neck.2", "neck.conv2"),
    ("neck.3", "neck.layer_norm2"),
    ("patch_embed.proj", "patch_embed.projection"),
    (".norm", ".layer_norm"),
    ("blocks", "layers"),
)
_LATER_CHAIN = (
    *_SHARED_CHAIN,
    ("sam_prompt_encoder", "prompt_encoder"),
    ("sam_mask_decoder", "mask_decoder"),
    ("image_encoder.neck", "vision_encoder.neck"),
    ("image_encoder", "vision_encoder.backbone"),
    ("patch_embed.proj", "patch_embed.projection"),
    ("no_mem_embed", "no_memory_embedding"),
    ("maskmem_backbone", "memory_encoder"),
    ("transformer.encoder", "memory_attention"),
    ("maskmem_tpos_enc", "memory_temporal_positional_encoding"),
    ("no_obj_ptr", "no_object_pointer"),
    ("no_obj_embed_spatial", "occlusion_spatial_embedding_parameter"),
    ("obj_ptr_tpos_proj", "temporal_positional_encoding_projection_layer"),
    ("obj_ptr_proj", "object_pointer_proj"),
    ("pix_feat_proj", "feature_projection"),
    ("memory_encoder.out_proj", "memory_encoder.projection"),
    ("dwconv", "depthwise_conv"),
    ("pwconv", "pointwise_conv"),
    ("fuser", "memory_fuser"),
    ("gamma", "scale"),
    (".norm", ".layer_norm"),
    ("trunk.", ""),
    ("out_proj", "o_proj"),
)
_SAM3_CHAIN = (
    ("detector.backbone.vision_backbone.trunk.pos_embed", "vision_encoder.backbone.embeddings.position_embeddings"),
    (
        "detector.backbone.vision_backbone.trunk.patch_embed.proj",
        "vision_encoder.backbone.embeddings.patch_embeddings.projection",
    ),
    ("detector.backbone.vision_backbone.trunk.ln_pre", "vision_encoder.backbone.layer_norm"),
    ("detector.backbone.vision_backbone.trunk.blocks", "vision_encoder.backbone.layers"),
    (".attn.proj", ".attention.o_proj"),
    (".attn.qkv", ".attention.qkv"),
    ("detector.backbone.vision_backbone.sam2_convs", "vision_encoder.neck.fpn_layers"),
    ("dconv_2x2_0", "scale_layers.0"),
    ("dconv_2x2_1", "scale_layers.2"),
    ("dconv_2x2", "scale_layers.0"),
    ("conv_1x1", "proj1"),
    ("conv_3x3", "proj2"),
    ("tracker.", ""),
    ("mlp.lin1", "mlp.proj_in"),
    ("mlp.lin2", "mlp.proj_out"),
)
_THREE_LAYERS = {"0": "proj_in", "1": "layers.0", "2": "proj_out"}


def converted(key: str, backbone: Backbone) -> str:
    """A key's name after transformers' conversion scripts, before tensors are split or joined."""
    if backbone is Backbone.TINY_VIT and key.startswith("image_encoder."):
        return key.replace("image_encoder.", "vision_encoder.")  # not transformers': the encoder is ours
    early = backbone in (Backbone.VIT, Backbone.TINY_VIT)
    chain = _SAM1_CHAIN if early else _LATER_CHAIN
    for old, new in (*_SAM3_CHAIN, *chain) if backbone is Backbone.PERCEPTION else chain:
        key = key.replace(old, new)
    three = r"(output_hypernetworks_mlps\.\d|pred_obj_score_head|object_pointer_proj)\.layers\.(\d)"
    key = re.sub(three, lambda match: f"{match[1]}.{_THREE_LAYERS[match[2]]}", key)
    if not early:
        step = re.search(r"mask_downsampler\.encoder\.(\d+)", key)
        if step:
            number, part = divmod(int(step[1]), 3)
            later = "final_conv" if number == 4 else f"layers.{number}.{('conv', 'layer_norm')[part]}"
            key = key.replace(f"encoder.{step[1]}", later)
        key = re.sub(r"\.mlp\.layers\.0\.", ".mlp.proj_in.", key)
        key = re.sub(r"\.mlp\.layers\.1\.", ".mlp.proj_out.", key)
        key = re.sub(r"neck\.convs\.(\d)\.conv\.", r"neck.convs.\1.", key)
    return key
