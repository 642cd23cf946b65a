"""Random weights for benchmarks of videos, with masks that have areas and borders, and the same for transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.device_scale import MODEL, calm
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import NETWORK_FILE, ModelSpec
from triton_sam.networks.memory_layers import MEMORY_NAMES
from triton_sam.networks.segmenters import build
from triton_sam.repository.model_folders import served_spec

#: Added to the score of being there: an object that is not would be an empty mask, which costs less.
_SURE = 50.0


def spec_in(folder: Path) -> ModelSpec:
    """The model that a repository serves as :data:`~benchmarks.device_scale.MODEL`, with its size and memory."""
    text = (folder / MODEL / "config.pbtxt").read_text()
    found = re.search(r'"model_id"\s*value\s*\{\s*string_value:\s*"([^"]+)"', text)
    assert found is not None
    return served_spec(get_spec(found.group(1)), folder / MODEL / "1")


def make_video_weights(folder: Path) -> Path:
    """The weights of the repository's first version; random ones are made if there are none."""
    file = folder / MODEL / "1" / NETWORK_FILE
    if not file.exists():
        network = random_network(spec_in(folder))
        save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, file)
    return file


def random_network(spec: ModelSpec) -> Any:
    """A network with a memory."""
    torch.manual_seed(0)
    network = build(spec.architecture, spec.side, MEMORY_TRAITS[spec.architecture.generation])
    with torch.no_grad():
        calm(network)
        for name, parameter in network.named_parameters():
            if name.partition(".")[0] in MEMORY_NAMES and not bool(parameter.any()):
                parameter.normal_(std=0.1)  # zeros would cost less than numbers
        network.mask_decoder.pred_obj_score_head.proj_out.bias += _SURE
    return network


def transformers_model(folder: Path) -> Any:
    """The network of a repository as transformers' ``Sam2VideoModel``, in float32 on the CPU."""
    return as_transformers(spec_in(folder), load_file(make_video_weights(folder)))


def as_transformers(spec: ModelSpec, weights: Mapping[str, torch.Tensor]) -> Any:
    """A network as transformers' ``Sam2VideoModel``, in float32 on the CPU."""
    from transformers import Sam2VideoConfig, Sam2VideoModel

    image = build(spec.architecture, spec.side)
    grid = spec.decoder.mask_side // 4
    config = Sam2VideoConfig(
        vision_config=image.config.vision_config,
        prompt_encoder_config={"image_size": spec.side},
        image_size=spec.side,
        memory_attention_rope_feat_sizes=[grid, grid],
        enable_temporal_pos_encoding_for_object_pointers=True,
        enable_occlusion_spatial_embedding=True,
    )
    network = Sam2VideoModel(config)
    missing, unknown = network.load_state_dict(weights, strict=False)
    assert not unknown, unknown
    # The prompt encoder's own copy of a table that both share, and what is used by neither.
    assert all("shared_embedding" in name or name == "no_memory_positional_encoding" for name in missing), missing
    network.prompt_encoder.shared_embedding.positional_embedding.data.copy_(
        network.shared_image_embedding.positional_embedding
    )
    return network.eval().requires_grad_(False)
