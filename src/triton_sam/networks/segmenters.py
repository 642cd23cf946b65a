"""Builds the torch network of an architecture from transformers' modules; MobileSAM's encoder is our own.

The network is also the reference of every export: its own ``forward`` does not use our wrappers. transformers is
imported by the functions that need it: the torch engine serves SAM 2 without it, seconds sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.errors import InvalidInput
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import IMAGENET_MEAN, IMAGENET_STD
from triton_sam.networks.concept_layers import add_concepts, is_concept_name, is_unused
from triton_sam.networks.memory_layers import MEMORY_NAMES, add_memory
from triton_sam.networks.sam2_layers import Sam2Layers

#: The side must be a multiple of this, so that all stages of the encoder have whole cells.
_SIDE_STEP = {Backbone.VIT: 16, Backbone.TINY_VIT: 32, Backbone.HIERA: 32, Backbone.PERCEPTION: 14}


def check_side(architecture: Architecture, side: int) -> None:
    """Raises InvalidInput if the encoder cannot take a square of this side, pixels."""
    step = _SIDE_STEP[architecture.backbone]
    if side < 8 * step or side > 4096 or side % step:
        raise InvalidInput(
            f"--image-size {side} does not suit this model: use a multiple of {step} from {8 * step} to 4096"
        )


def build(architecture: Architecture, side: int, memory: MemoryTraits | None = None, *, concepts: bool = False) -> Any:
    """A network with random weights, in eval mode; its ``forward``, for images, is transformers' own.

    Args:
        side: side of the square input, pixels.
        memory: adds the layers of a memory under the names of transformers' video networks.
        concepts: adds the layers that find what words and examples name, as ``concepts``.
    """
    check_side(architecture, side)
    network = _BUILDERS[architecture.backbone](architecture, side)
    if concepts:
        add_concepts(network, architecture, side)
    return _finished(network, memory)


def build_layers(
    architecture: Architecture, side: int, memory: MemoryTraits | None = None, *, concepts: bool = False
) -> Any:
    """What the torch engine takes apart: layers with the names and shapes of :func:`build`, with random weights.

    Those of SAM 2 have no ``forward``.
    """
    if architecture.backbone is not Backbone.HIERA:
        return build(architecture, side, memory, concepts=concepts)
    check_side(architecture, side)
    return _finished(Sam2Layers(architecture, side), memory)


def _finished(network: Any, memory: MemoryTraits | None) -> Any:
    if memory is not None:
        add_memory(network, memory)
    return network.eval().requires_grad_(False)


def load_layers(architecture: Architecture, side: int, weights: Mapping[str, Tensor]) -> Any:
    """The layers of :func:`build_layers` with float32 copies of these weights, and with the parts that they have: a
    memory, and what finds concepts."""
    memory = MEMORY_TRAITS[architecture.generation] if has_memory(weights) else None
    if architecture.backbone is Backbone.HIERA:
        with torch.device("meta"):  # random weights would only take time
            network = build_layers(architecture, side, memory)
    else:
        network = build(architecture, side, memory)
        if has_concepts(weights):
            with torch.device("meta"):
                add_concepts(network, architecture, side)
    # Copies: safetensors maps its file, which may change while the engine runs.
    copies = {name: one.to(torch.float32, copy=True) for name, one in weights.items() if not is_unused(name)}
    network.load_state_dict(copies, assign=True)
    return network.eval().requires_grad_(False)


def has_concepts(names: Iterable[str]) -> bool:
    """Whether weights of these names have what finds concepts."""
    return any(is_concept_name(name) for name in names)


def has_memory(names: Iterable[str]) -> bool:
    """Whether weights of these names have a memory, for video."""
    return any(name.partition(".")[0] in MEMORY_NAMES for name in names)


def import_parts(architecture: Architecture) -> None:
    """Imports now what :func:`load_layers` would import."""
    if architecture.backbone is Backbone.PERCEPTION:
        from transformers import Sam3TrackerConfig, Sam3TrackerModel  # noqa: F401
    elif architecture.backbone is not Backbone.HIERA:
        from transformers import SamConfig, SamModel  # noqa: F401

        from triton_sam.networks.tinyvit import TinyVit  # noqa: F401


def _build_sam1(architecture: Architecture, side: int) -> Any:
    from transformers import SamModel

    return SamModel(_sam1_config(architecture, side))


def _build_mobile(architecture: Architecture, side: int) -> Any:
    from transformers import SamModel

    from triton_sam.networks.tinyvit import TinyVit

    # transformers has no TinyViT: its smallest encoder is built and replaced.
    stand_in = Architecture(Backbone.VIT, 16, (1,), 1, (0,), (14,))
    model = SamModel(_sam1_config(stand_in, side))
    model.vision_encoder = TinyVit(architecture.width, architecture.depths, architecture.windows)
    return model


def _sam1_config(architecture: Architecture, side: int) -> Any:
    from transformers import SamConfig

    return SamConfig(
        vision_config={
            "hidden_size": architecture.width,
            "num_hidden_layers": architecture.depths[0],
            "num_attention_heads": architecture.heads,
            "global_attn_indexes": list(architecture.global_blocks),
            "window_size": architecture.windows[0],
            "image_size": side,
        },
        prompt_encoder_config={"image_size": side, "image_embedding_size": side // 16},
    )


def _build_sam2(architecture: Architecture, side: int) -> Any:
    from transformers import Sam2Config, Sam2Model

    widths = [architecture.width * 2**stage for stage in range(len(architecture.depths))]
    backbone = {
        "hidden_size": architecture.width,
        "num_attention_heads": architecture.heads,
        "blocks_per_stage": list(architecture.depths),
        "embed_dim_per_stage": widths,
        "num_attention_heads_per_stage": [architecture.heads * 2**stage for stage in range(len(widths))],
        "window_size_per_stage": list(architecture.windows),
        "global_attention_blocks": list(architecture.global_blocks),
        "window_positional_embedding_background_size": [architecture.background] * 2,
        "image_size": [side, side],
        "model_type": "sam2_hiera_det_model",
    }
    config = Sam2Config(
        vision_config={
            "backbone_config": backbone,
            "backbone_channel_list": widths[::-1],
            "backbone_feature_sizes": [[side // step, side // step] for step in (4, 8, 16)],
            "model_type": "sam2_vision_model",
        },
        prompt_encoder_config={"image_size": side},
    )
    return Sam2Model(config)


def _build_sam3(architecture: Architecture, side: int) -> Any:
    from transformers import Sam3TrackerConfig, Sam3TrackerModel

    backbone = {
        "hidden_size": architecture.width,
        "intermediate_size": architecture.width * 37 // 8,
        "num_hidden_layers": architecture.depths[0],
        "num_attention_heads": architecture.heads,
        "global_attn_indexes": list(architecture.global_blocks),
        "window_size": architecture.windows[0],
        "image_size": side,
        "model_type": "sam3_vit_model",
    }
    grid = side // 14
    config = Sam3TrackerConfig(
        vision_config={
            "backbone_config": backbone,
            "backbone_feature_sizes": [[grid * scale, grid * scale] for scale in (4, 2, 1)],
            "fpn_hidden_size": architecture.neck,
            "model_type": "sam3_vision_model",
        },
        prompt_encoder_config={"image_size": side, "hidden_size": architecture.neck},
        mask_decoder_config={
            "hidden_size": architecture.neck,
            "mlp_dim": 8 * architecture.neck,
            "iou_head_hidden_dim": architecture.neck,
        },
    )
    return Sam3TrackerModel(config)


_BUILDERS = {
    Backbone.VIT: _build_sam1,
    Backbone.TINY_VIT: _build_mobile,
    Backbone.HIERA: _build_sam2,
    Backbone.PERCEPTION: _build_sam3,
}


def normalisation(architecture: Architecture) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, std), each [3,1,1], that normalise the encoder's pixels in [0,1]."""
    half = (0.5, 0.5, 0.5)
    mean, std = (half, half) if architecture.backbone is Backbone.PERCEPTION else (IMAGENET_MEAN, IMAGENET_STD)
    return torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
