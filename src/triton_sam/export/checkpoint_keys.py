"""Renames the keys of official checkpoints to the names of transformers' modules.

All rules of a table that match a key are applied, in order. Keys that images do not need are listed by name, so that an
unknown key is an error and not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from triton_sam.export.checkpoint_keys_concepts import HUB_CONCEPTS, META_CONCEPTS, finds_concepts
from triton_sam.networks.concept_layers import is_concept_name, is_unused
from triton_sam.networks.memory_layers import MEMORY_NAMES

_Rules = tuple[tuple[str, str], ...]

#: Hugging Face's files have the modules' names already; a whole SAM 3 has two models that share an image encoder.
_HUB: _Rules = (
    (r"^tracker_model\.", ""),
    (r"^detector_model\.vision_encoder\.backbone\.", "vision_encoder.backbone."),
    (r"^tracker_neck\.", "vision_encoder.neck."),
    *HUB_CONCEPTS,
)

_HIERA = r"^image_encoder\.trunk\."
_SAM3_TRUNK = r"^detector\.backbone\.vision_backbone\.trunk\."
_SAM3_NECK = r"^detector\.backbone\.vision_backbone\.sam2_convs\.(\d+)\."
_TO_BACKBONE = "vision_encoder.backbone."
_TO_SAM3_NECK = r"vision_encoder.neck.fpn_layers.\1."
_HEADS = (
    r"^((?:mask_decoder\.(?:iou_prediction_head|pred_obj_score_head|output_hypernetworks_mlps\.\d+)"
    r"|object_pointer_proj)\.)"
)
_MASK_STEPS = r"^memory_encoder\.mask_downsampler\.encoder\."
_TO_MASK_STEPS = "memory_encoder.mask_downsampler.layers."
_FUSER = r"^memory_encoder\.fuser\.layers\.(\d+)\."
_TO_FUSER = r"memory_encoder.memory_fuser.layers.\1."

_META: _Rules = (
    # image encoder of SAM 3
    (_SAM3_TRUNK + r"pos_embed$", _TO_BACKBONE + "embeddings.position_embeddings"),
    (_SAM3_TRUNK + r"patch_embed\.proj\.", _TO_BACKBONE + "embeddings.patch_embeddings.projection."),
    (_SAM3_TRUNK + r"ln_pre\.", _TO_BACKBONE + "layer_norm."),
    (_SAM3_TRUNK + r"blocks\.(\d+)\.attn\.proj\.", _TO_BACKBONE + r"layers.\1.attention.o_proj."),
    (_SAM3_TRUNK + r"blocks\.(\d+)\.attn\.", _TO_BACKBONE + r"layers.\1.attention."),
    (_SAM3_TRUNK + r"blocks\.(\d+)\.norm", _TO_BACKBONE + r"layers.\1.layer_norm"),
    (_SAM3_TRUNK + r"blocks\.", _TO_BACKBONE + "layers."),
    (_SAM3_NECK + r"dconv_2x2(?:_0)?\.", _TO_SAM3_NECK + "scale_layers.0."),
    (_SAM3_NECK + r"dconv_2x2_1\.", _TO_SAM3_NECK + "scale_layers.2."),
    (_SAM3_NECK + r"conv_1x1\.", _TO_SAM3_NECK + "proj1."),
    (_SAM3_NECK + r"conv_3x3\.", _TO_SAM3_NECK + "proj2."),
    *META_CONCEPTS,
    (r"^tracker\.", ""),
    # image encoder of SAM 2
    (_HIERA + r"patch_embed\.proj\.", _TO_BACKBONE + "patch_embed.projection."),
    (_HIERA + r"blocks\.(\d+)\.mlp\.layers\.0\.", _TO_BACKBONE + r"blocks.\1.mlp.proj_in."),
    (_HIERA + r"blocks\.(\d+)\.mlp\.layers\.1\.", _TO_BACKBONE + r"blocks.\1.mlp.proj_out."),
    (_HIERA + r"blocks\.(\d+)\.norm", _TO_BACKBONE + r"blocks.\1.layer_norm"),
    (_HIERA, _TO_BACKBONE),
    (r"^image_encoder\.neck\.convs\.(\d+)\.conv\.", r"vision_encoder.neck.convs.\1."),
    # image encoders of SAM 1
    (r"^image_encoder\.patch_embed\.proj\.", "vision_encoder.patch_embed.projection."),
    (r"^image_encoder\.blocks\.(\d+)\.norm", r"vision_encoder.layers.\1.layer_norm"),
    (r"^image_encoder\.blocks\.", "vision_encoder.layers."),
    (r"^image_encoder\.", "vision_encoder."),
    # prompt encoder and mask decoder of all families
    (r"^sam_prompt_encoder\.", "prompt_encoder."),
    (r"^sam_mask_decoder\.", "mask_decoder."),
    (r"^no_mem_embed$", "no_memory_embedding"),
    (r"\.pe_layer\.positional_encoding_gaussian_matrix$", ".shared_embedding.positional_embedding"),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"\.mask_downscaling\.0\.", ".mask_embed.conv1."),
    (r"\.mask_downscaling\.1\.", ".mask_embed.layer_norm1."),
    (r"\.mask_downscaling\.3\.", ".mask_embed.conv2."),
    (r"\.mask_downscaling\.4\.", ".mask_embed.layer_norm2."),
    (r"\.mask_downscaling\.6\.", ".mask_embed.conv3."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (r"^(mask_decoder\.transformer\..*\.)norm(\d)\.", r"\1layer_norm\2."),
    (r"^mask_decoder\.transformer\.norm_final_attn\.", "mask_decoder.transformer.layer_norm_final_attn."),
    # memory of SAM 2 and 3
    (r"^transformer\.encoder\.", "memory_attention."),
    (r"^maskmem_backbone\.", "memory_encoder."),
    (r"^maskmem_tpos_enc$", "memory_temporal_positional_encoding"),
    (r"^no_obj_ptr$", "no_object_pointer"),
    (r"^no_obj_embed_spatial$", "occlusion_spatial_embedding_parameter"),
    (r"^obj_ptr_proj\.", "object_pointer_proj."),
    (r"^obj_ptr_tpos_proj\.", "temporal_positional_encoding_projection_layer."),
    (r"^(memory_attention\..*\.)out_proj\.", r"\1o_proj."),
    (r"^(memory_attention\.(?:layers\.\d+\.)?)norm(\d?)\.", r"\1layer_norm\2."),
    (_MASK_STEPS + r"0\.", _TO_MASK_STEPS + "0.conv."),
    (_MASK_STEPS + r"1\.", _TO_MASK_STEPS + "0.layer_norm."),
    (_MASK_STEPS + r"3\.", _TO_MASK_STEPS + "1.conv."),
    (_MASK_STEPS + r"4\.", _TO_MASK_STEPS + "1.layer_norm."),
    (_MASK_STEPS + r"6\.", _TO_MASK_STEPS + "2.conv."),
    (_MASK_STEPS + r"7\.", _TO_MASK_STEPS + "2.layer_norm."),
    (_MASK_STEPS + r"9\.", _TO_MASK_STEPS + "3.conv."),
    (_MASK_STEPS + r"10\.", _TO_MASK_STEPS + "3.layer_norm."),
    (_MASK_STEPS + r"12\.", "memory_encoder.mask_downsampler.final_conv."),
    (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
    (r"^memory_encoder\.out_proj\.", "memory_encoder.projection."),
    (_FUSER + r"dwconv\.", _TO_FUSER + "depthwise_conv."),
    (_FUSER + r"norm\.", _TO_FUSER + "layer_norm."),
    (_FUSER + r"pwconv(\d)\.", _TO_FUSER + r"pointwise_conv\2."),
    (_FUSER + r"gamma$", _TO_FUSER + "scale"),
    # heads of the mask decoder, and that of object pointers
    (_HEADS + r"layers\.0\.", r"\1proj_in."),
    (_HEADS + r"layers\.2\.", r"\1proj_out."),
    (_HEADS + r"layers\.1\.", r"\1layers.0."),
)
#: The neck of SAM 1's ViT is four named modules; MobileSAM's keeps the checkpoint's numbered sequence.
_META_VIT: _Rules = (
    (r"^vision_encoder\.neck\.0\.", "vision_encoder.neck.conv1."),
    (r"^vision_encoder\.neck\.1\.", "vision_encoder.neck.layer_norm1."),
    (r"^vision_encoder\.neck\.2\.", "vision_encoder.neck.conv2."),
    (r"^vision_encoder\.neck\.3\.", "vision_encoder.neck.layer_norm2."),
)
#: The mask decoders of SAM 2 and 3 name these layers differently from SAM 1's.
_META_LATER: _Rules = (
    (r"^(mask_decoder\.transformer\..*\.)out_proj\.", r"\1o_proj."),
    (r"^(mask_decoder\.transformer\.layers\.\d+\.mlp\.)(?:layers\.0|lin1)\.", r"\1proj_in."),
    (r"^(mask_decoder\.transformer\.layers\.\d+\.mlp\.)(?:layers\.1|lin2)\.", r"\1proj_out."),
)

#: Parts of official checkpoints that nothing here needs: MobileSAM's classifier, unused positions, points as examples.
_UNUSED = re.compile(
    r"^(?:no_mem_pos_enc|no_memory_positional_encoding)$|^memory_attention\.rotary_emb\."
    r"|^detector(?:_model)?\.|\.attention\.freqs_cis$|^pixel_(?:mean|std)$|^vision_encoder\.(?:norm_head|head)\."
)
#: The part without which the others of a memory are of no use.
_MEMORY_MARK = "memory_attention."
#: SAM 2.1 and SAM 2 differ in this and other keys of their memory only.
_OCCLUSION = "occlusion_spatial_embedding_parameter"
_SAM3_MARK = "vision_encoder.backbone.layer_norm.weight"
#: One table under two names; Hugging Face's files have one of them or both.
_POSITIONS = ("prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding")


@dataclass(slots=True)
class MappedWeights:
    """A checkpoint under transformers' names.

    Attributes:
        tensors: name -> tensor, of the image network.
        memory: likewise of the memory, which only video needs; empty if the file has none.
        concepts: likewise of what finds concepts; empty if the file has none.
        origin: name -> the key in the file, for messages.
        unused: keys in the file that are not needed.
        generation: that of :class:`~triton_sam.models.architecture.Architecture` if the file shows it, else empty.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    concepts: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    generation: str = ""

    def part_of(self, name: str) -> dict[str, Tensor]:
        """The one of the three tables in which a name belongs."""
        if is_concept_name(name):
            return self.concepts
        return self.memory if name.partition(".")[0] in MEMORY_NAMES else self.tensors


def map_keys(state: Mapping[str, Tensor]) -> MappedWeights:
    """Renames Meta's or Hugging Face's keys to transformers', and splits or joins tensors if the modules differ."""
    rules = _rules_for(state)
    mapped = MappedWeights()
    names = {key: _rename(key, rules) for key in state}
    has_memory = any(name.startswith(_MEMORY_MARK) for name in names.values())
    has_concepts = finds_concepts(set(names.values()))
    for key, name in names.items():
        part = mapped.part_of(name)
        useless = (part is mapped.memory and not has_memory) or (part is mapped.concepts and not has_concepts)
        if useless or _UNUSED.search(name) or is_unused(name):
            mapped.unused.append(key)
            continue
        part[name] = state[key]
        mapped.origin[name] = key
    mapped.generation = _generation(mapped)
    _split_attention(mapped)
    _join_point_embeddings(mapped)
    _drop_class_position(mapped)
    for name, twin in (_POSITIONS, _POSITIONS[::-1]):
        if name in mapped.tensors:
            mapped.tensors.setdefault(twin, mapped.tensors[name])
    return mapped


def _rules_for(state: Mapping[str, Tensor]) -> _Rules:
    if any(key.endswith("mask_decoder.upscale_conv1.weight") for key in state):
        return _HUB
    rules = _META
    if any(key.endswith("mask_decoder.conv_s0.weight") for key in state):
        rules += _META_LATER
    if "image_encoder.pos_embed" in state:
        rules += _META_VIT
    return rules


def _rename(key: str, rules: _Rules) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


def _generation(mapped: MappedWeights) -> str:
    if _SAM3_MARK in mapped.tensors:
        return "sam3"
    if not mapped.memory:
        return ""
    return "sam2.1" if _OCCLUSION in mapped.memory else "sam2"


def _replace(mapped: MappedWeights, old: str, new: Mapping[str, Tensor]) -> None:
    origin, part = mapped.origin.pop(old), mapped.part_of(old)
    del part[old]
    for name, tensor in new.items():
        part[name] = tensor
        mapped.origin[name] = origin


def _split_attention(mapped: MappedWeights) -> None:
    """SAM 3: splits the joint matrices of query, key and value into three."""
    for name in [name for name in mapped.origin if ".attention.qkv." in name or ".in_proj_" in name]:
        parts = zip("qkv", mapped.part_of(name)[name].chunk(3), strict=True)
        joint = re.compile(r"\.(?:qkv\.|in_proj_)")
        _replace(mapped, name, {joint.sub(f".{letter}_proj.", name): tensor for letter, tensor in parts})


def _join_point_embeddings(mapped: MappedWeights) -> None:
    """SAM 2 and 3: joins the rows of the four labels into one table."""
    names = [f"prompt_encoder.point_embed.{label}.weight" for label in range(4)]
    later = "mask_decoder.conv_s0.weight" in mapped.tensors
    if later and all(name in mapped.tensors for name in names):
        joined = torch.cat([mapped.tensors[name] for name in names])
        for name in names[1:]:
            del mapped.tensors[name], mapped.origin[name]
        _replace(mapped, names[0], {"prompt_encoder.point_embed.weight": joined})


def _drop_class_position(mapped: MappedWeights) -> None:
    """SAM 3: drops the first row of Meta's position table, which is for a class token and not part of the grid."""
    name = "vision_encoder.backbone.embeddings.position_embeddings"
    table = mapped.tensors.get(name)
    if table is not None and table.ndim == 3 and round((table.shape[1] - 1) ** 0.5) ** 2 == table.shape[1] - 1:
        mapped.tensors[name] = table[:, 1:]
