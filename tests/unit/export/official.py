"""Meta's key names and tensor shapes of official checkpoints, derived again from the networks' descriptions.

Nothing here comes from the code under test.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from tests.unit.export import official_concepts
from triton_sam.models.architecture import Architecture, Backbone

Shapes = dict[str, tuple[int, ...]]


def tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Random values that depend on the key, so that a tensor under a wrong name is noticed."""
    made = {}
    for key, shape in shapes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        noise = torch.randn(shape, generator=generator) * 0.05
        if key.endswith("num_batches_tracked"):
            made[key] = torch.tensor(7)
        elif key.endswith("freqs_cis"):
            made[key] = torch.complex(noise, noise)
        else:
            made[key] = noise.abs() + 0.5 if key.endswith("running_var") else noise
    return made


def without_values(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Shapes only, so that full-size networks need no memory."""
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


def _both(name: str, weight: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _up(name: str, inputs: int, outputs: int) -> Shapes:
    """A transposed convolution that doubles the resolution."""
    return {f"{name}.weight": (inputs, outputs, 2, 2), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return _both(name, (width,))


def _mlp(name: str, widths: Iterable[int]) -> Shapes:
    found: Shapes = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        found |= _both(f"{name}.layers.{layer}", (outputs, inputs))
    return found


def _attention(name: str, inner: int, keys: int = 256) -> Shapes:
    found = _both(f"{name}.q_proj", (inner, 256))
    found |= _both(f"{name}.k_proj", (inner, keys)) | _both(f"{name}.v_proj", (inner, keys))
    return found | _both(f"{name}.out_proj", (256, inner))


def _prompt_encoder(name: str) -> Shapes:
    found: Shapes = {f"{name}.pe_layer.positional_encoding_gaussian_matrix": (2, 128)}
    found |= {f"{name}.point_embeddings.{label}.weight": (1, 256) for label in range(4)}
    found |= {f"{name}.not_a_point_embed.weight": (1, 256), f"{name}.no_mask_embed.weight": (1, 256)}
    found |= _both(f"{name}.mask_downscaling.0", (4, 1, 2, 2)) | _norm(f"{name}.mask_downscaling.1", 4)
    found |= _both(f"{name}.mask_downscaling.3", (16, 4, 2, 2)) | _norm(f"{name}.mask_downscaling.4", 16)
    return found | _both(f"{name}.mask_downscaling.6", (256, 16, 1, 1))


def _mask_decoder(name: str, mlp: tuple[str, str], *, later: bool) -> Shapes:
    """
    Args:
        mlp: names of the two layers in the transformer's MLPs.
        later: SAM 2 and 3, with an object score and finer features.
    """
    found: Shapes = {f"{name}.iou_token.weight": (1, 256), f"{name}.mask_tokens.weight": (4, 256)}
    for layer in range(2):
        block = f"{name}.transformer.layers.{layer}"
        found |= _attention(f"{block}.self_attn", 256)
        for direction in ("token_to_image", "image_to_token"):
            found |= _attention(f"{block}.cross_attn_{direction}", 128)
        for number in (1, 2, 3, 4):
            found |= _norm(f"{block}.norm{number}", 256)
        found |= _both(f"{block}.mlp.{mlp[0]}", (2048, 256)) | _both(f"{block}.mlp.{mlp[1]}", (256, 2048))
    found |= _attention(f"{name}.transformer.final_attn_token_to_image", 128)
    found |= _norm(f"{name}.transformer.norm_final_attn", 256)
    found |= _up(f"{name}.output_upscaling.0", 256, 64) | _norm(f"{name}.output_upscaling.1", 64)
    found |= _up(f"{name}.output_upscaling.3", 64, 32)
    for token in range(4):
        found |= _mlp(f"{name}.output_hypernetworks_mlps.{token}", (256, 256, 256, 32))
    found |= _mlp(f"{name}.iou_prediction_head", (256, 256, 256, 4))
    if later:
        found |= _both(f"{name}.conv_s0", (32, 256, 1, 1)) | _both(f"{name}.conv_s1", (64, 256, 1, 1))
        found |= {f"{name}.obj_score_token.weight": (1, 256)}
        found |= _mlp(f"{name}.pred_obj_score_head", (256, 256, 256, 1))
    return found


def _sam1_heads() -> Shapes:
    return _prompt_encoder("prompt_encoder") | _mask_decoder("mask_decoder", ("lin1", "lin2"), later=False)


def _neck(name: str, width: int) -> Shapes:
    found: Shapes = {f"{name}.0.weight": (256, width, 1, 1), f"{name}.2.weight": (256, 256, 3, 3)}
    return found | _norm(f"{name}.1", 256) | _norm(f"{name}.3", 256)


def sam1(architecture: Architecture, side: int) -> Shapes:
    """``sam_vit_*.pth``."""
    width, grid, head = architecture.width, side // 16, architecture.width // architecture.heads
    found: Shapes = {"image_encoder.pos_embed": (1, grid, grid, width)}
    found |= _both("image_encoder.patch_embed.proj", (width, 3, 16, 16))
    for number in range(architecture.depths[0]):
        block = f"image_encoder.blocks.{number}"
        reach = 2 * (grid if number in architecture.global_blocks else architecture.windows[0]) - 1
        found |= _norm(f"{block}.norm1", width) | _norm(f"{block}.norm2", width)
        found |= {f"{block}.attn.rel_pos_h": (reach, head), f"{block}.attn.rel_pos_w": (reach, head)}
        found |= _both(f"{block}.attn.qkv", (3 * width, width)) | _both(f"{block}.attn.proj", (width, width))
        found |= _both(f"{block}.mlp.lin1", (4 * width, width)) | _both(f"{block}.mlp.lin2", (width, 4 * width))
    return found | _neck("image_encoder.neck", width) | _sam1_heads()


def _conv_norm(name: str, weight: tuple[int, ...]) -> Shapes:
    found: Shapes = {f"{name}.c.weight": weight, f"{name}.bn.num_batches_tracked": ()}
    return found | {f"{name}.bn.{part}": weight[:1] for part in ("weight", "bias", "running_mean", "running_var")}


def _three_convs(name: str, inputs: int, inner: int, outputs: int) -> Shapes:
    found = _conv_norm(f"{name}.conv1", (inner, inputs, 1, 1)) | _conv_norm(f"{name}.conv2", (inner, 1, 3, 3))
    return found | _conv_norm(f"{name}.conv3", (outputs, inner, 1, 1))


def tiny_vit(depths: tuple[int, ...], windows: tuple[int, ...], name: str = "") -> Shapes:
    """TinyViT-5M as in MobileSAM, without the classifier; ``name`` is the prefix of every key."""
    widths, heads = (64, 128, 160, 320), (2, 4, 5, 10)
    found = _conv_norm("patch_embed.seq.0", (32, 3, 3, 3)) | _conv_norm("patch_embed.seq.2", (64, 32, 3, 3))
    for number in range(depths[0]):
        found |= _three_convs(f"layers.0.blocks.{number}", 64, 256, 64)
    for stage in (0, 1, 2):
        found |= _three_convs(f"layers.{stage}.downsample", widths[stage], widths[stage + 1], widths[stage + 1])
    for stage in (1, 2, 3):
        width = widths[stage]
        for number in range(depths[stage]):
            block = f"layers.{stage}.blocks.{number}"
            found |= {f"{block}.attn.attention_biases": (heads[stage], windows[stage] ** 2)}
            found |= _norm(f"{block}.attn.norm", width) | _norm(f"{block}.mlp.norm", width)
            found |= _both(f"{block}.attn.qkv", (3 * width, width)) | _both(f"{block}.attn.proj", (width, width))
            found |= _both(f"{block}.mlp.fc1", (4 * width, width)) | _both(f"{block}.mlp.fc2", (width, 4 * width))
            found |= _conv_norm(f"{block}.local_conv", (width, 1, 3, 3))
    found |= _neck("neck", 320)
    return {name + key: shape for key, shape in found.items()}


MOBILE_UNUSED = (
    "image_encoder.norm_head.weight",
    "image_encoder.norm_head.bias",
    "image_encoder.head.weight",
    "image_encoder.head.bias",
)


def mobile(architecture: Architecture) -> Shapes:
    """``mobile_sam.pt``, including the unused classifier."""
    found = tiny_vit(architecture.depths, architecture.windows, "image_encoder.")
    found |= _norm("image_encoder.norm_head", 320) | _both("image_encoder.head", (1000, 320))
    return found | _sam1_heads()


def _hiera(architecture: Architecture) -> Shapes:
    width, trunk = architecture.width, "image_encoder.trunk"
    window = architecture.windows[0]
    found: Shapes = {
        f"{trunk}.pos_embed": (1, width, architecture.background, architecture.background),
        f"{trunk}.pos_embed_window": (1, width, window, window),
    }
    found |= _both(f"{trunk}.patch_embed.proj", (width, 3, 7, 7))
    number = 0
    for stage, depth in enumerate(architecture.depths):
        for position in range(depth):
            inputs = width // 2 if stage and position == 0 else width
            block = f"{trunk}.blocks.{number}"
            found |= _norm(f"{block}.norm1", inputs) | _norm(f"{block}.norm2", width)
            found |= _both(f"{block}.attn.qkv", (3 * width, inputs)) | _both(f"{block}.attn.proj", (width, width))
            found |= _mlp(f"{block}.mlp", (width, 4 * width, width))
            if inputs != width:
                found |= _both(f"{block}.proj", (width, inputs))
            number += 1
        if stage + 1 < len(architecture.depths):
            width *= 2
    for level in range(4):
        found |= _both(f"image_encoder.neck.convs.{level}.conv", (256, width >> level, 1, 1))
    return found


def _memory_attention(name: str) -> Shapes:
    found: Shapes = {}
    for number in range(4):
        layer = f"{name}.layers.{number}"
        found |= _attention(f"{layer}.self_attn", 256) | _attention(f"{layer}.cross_attn_image", 256, keys=64)
        found |= _both(f"{layer}.linear1", (2048, 256)) | _both(f"{layer}.linear2", (256, 2048))
        for part in (1, 2, 3):
            found |= _norm(f"{layer}.norm{part}", 256)
    return found | _norm(f"{name}.norm", 256)


def _memory_encoder(name: str) -> Shapes:
    found: Shapes = {}
    for step, (inputs, outputs) in enumerate(((1, 4), (4, 16), (16, 64), (64, 256))):
        found |= _both(f"{name}.mask_downsampler.encoder.{3 * step}", (outputs, inputs, 3, 3))
        found |= _norm(f"{name}.mask_downsampler.encoder.{3 * step + 1}", outputs)
    found |= _both(f"{name}.mask_downsampler.encoder.12", (256, 256, 1, 1))
    found |= _both(f"{name}.pix_feat_proj", (256, 256, 1, 1)) | _both(f"{name}.out_proj", (64, 256, 1, 1))
    for number in range(2):
        layer = f"{name}.fuser.layers.{number}"
        found |= {f"{layer}.gamma": (256,)} | _both(f"{layer}.dwconv", (256, 1, 7, 7)) | _norm(f"{layer}.norm", 256)
        found |= _both(f"{layer}.pwconv1", (1024, 256)) | _both(f"{layer}.pwconv2", (256, 1024))
    return found


def video_part(generation: str, attention: str = "memory_attention", encoder: str = "memory_encoder") -> Shapes:
    """The keys that only video needs."""
    found: Shapes = {
        "maskmem_tpos_enc": (7, 1, 1, 64),
        "no_mem_pos_enc": (1, 1, 256),
        "no_obj_ptr": (1, 256),
        "mask_downsample.weight": (1, 1, 4, 4),
        "mask_downsample.bias": (1,),
    }
    found |= _memory_attention(attention) | _memory_encoder(encoder) | _mlp("obj_ptr_proj", (256, 256, 256, 256))
    if generation == "sam2.1":
        found |= {"no_obj_embed_spatial": (1, 64)} | _both("obj_ptr_tpos_proj", (64, 256))
    return found


def _later_heads(mlp: tuple[str, str]) -> Shapes:
    found: Shapes = {"no_mem_embed": (1, 1, 256)}
    found |= _prompt_encoder("sam_prompt_encoder")
    return found | _mask_decoder("sam_mask_decoder", mlp, later=True)


def sam2(architecture: Architecture, *, video: bool = True) -> Shapes:
    """``sam2_hiera_*.pt`` and ``sam2.1_hiera_*.pt``; without the video part, as in image-mode files."""
    found = _hiera(architecture) | _later_heads(("layers.0", "layers.1"))
    return found | video_part(architecture.generation) if video else found


def sam3_unused(architecture: Architecture) -> Shapes:
    """Some of the keys of ``sam3.pt`` that nothing here needs."""
    found = official_concepts.unused(architecture)
    head = architecture.width // architecture.heads
    for number in range(architecture.depths[0]):
        cells = 72**2 if number in architecture.global_blocks else 24**2
        found |= {f"detector.backbone.vision_backbone.trunk.blocks.{number}.attn.freqs_cis": (cells, head // 2)}
    return found | {"tracker.no_mem_pos_enc": (1, 1, 256)}


def sam3(architecture: Architecture) -> Shapes:
    """``sam3.pt``."""
    width, trunk = architecture.width, "detector.backbone.vision_backbone.trunk"
    found: Shapes = {
        f"{trunk}.pos_embed": (1, 1 + 24 * 24, width),
        f"{trunk}.patch_embed.proj.weight": (width, 3, 14, 14),
    }
    found |= _norm(f"{trunk}.ln_pre", width)
    inner = int(width * 4.625)
    for number in range(architecture.depths[0]):
        block = f"{trunk}.blocks.{number}"
        found |= _norm(f"{block}.norm1", width) | _norm(f"{block}.norm2", width)
        found |= _both(f"{block}.attn.qkv", (3 * width, width)) | _both(f"{block}.attn.proj", (width, width))
        found |= _both(f"{block}.mlp.fc1", (inner, width)) | _both(f"{block}.mlp.fc2", (width, inner))
    neck = "detector.backbone.vision_backbone.sam2_convs"
    found |= _up(f"{neck}.0.dconv_2x2_0", width, width // 2) | _up(f"{neck}.0.dconv_2x2_1", width // 2, width // 4)
    found |= _up(f"{neck}.1.dconv_2x2", width, width // 2)
    for level, inputs in enumerate((width // 4, width // 2, width, width)):
        found |= _both(f"{neck}.{level}.conv_1x1", (256, inputs, 1, 1))
        found |= _both(f"{neck}.{level}.conv_3x3", (256, 256, 3, 3))
    tracker = _later_heads(("lin1", "lin2"))
    tracker |= video_part("sam2.1", attention="transformer.encoder", encoder="maskmem_backbone")
    found |= {f"tracker.{key}": shape for key, shape in tracker.items()} | official_concepts.concepts(architecture)
    return found | sam3_unused(architecture)


def checkpoint(architecture: Architecture, side: int) -> Shapes:
    """The official checkpoint of a network."""
    if architecture.backbone is Backbone.VIT:
        return sam1(architecture, side)
    if architecture.backbone is Backbone.TINY_VIT:
        return mobile(architecture)
    return sam2(architecture) if architecture.backbone is Backbone.HIERA else sam3(architecture)


def unused(architecture: Architecture) -> list[str]:
    """Keys of the official checkpoint that are not needed."""
    if architecture.backbone is Backbone.TINY_VIT:
        return list(MOBILE_UNUSED)
    if architecture.backbone is Backbone.HIERA:
        return ["no_mem_pos_enc"]
    return list(sam3_unused(architecture)) if architecture.backbone is Backbone.PERCEPTION else []
