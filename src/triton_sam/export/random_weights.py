"""Random weights, to try an export without a checkpoint: every family at full size, or shrunk for tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from triton_sam.models.architecture import Architecture, Backbone, ConceptArchitecture
from triton_sam.models.specs import ModelSpec, exported_graphs

_FEW_CONCEPTS = ConceptArchitecture(
    words=64,
    text_width=32,
    text_layers=2,
    text_heads=2,
    text_hidden=64,
    end_token=63,
    geometry_layers=1,
    encoder_layers=1,
    decoder_layers=2,
    hidden=64,
    queries=20,
)
#: One block of each kind that a backbone has, and narrow.
_SHRUNK: dict[Backbone, dict[str, Any]] = {
    Backbone.VIT: {"width": 64, "depths": (2,), "heads": 2, "global_blocks": (1,)},
    Backbone.TINY_VIT: {"width": 64, "depths": (1, 1, 1, 1)},
    Backbone.HIERA: {"depths": (1, 2, 2, 1), "global_blocks": (4,)},
    Backbone.PERCEPTION: {
        "width": 64,
        "depths": (2,),
        "heads": 2,
        "global_blocks": (1,),
        "concepts": _FEW_CONCEPTS,
    },
}


def shrunk(spec: ModelSpec) -> ModelSpec:
    """The same model with few narrow blocks: its graphs have the same patterns and take a hundredth of the time."""
    architecture: Architecture = dataclasses.replace(spec.architecture, **_SHRUNK[spec.architecture.backbone])
    return dataclasses.replace(spec, architecture=architecture, graphs=exported_graphs(architecture, spec.side))


def randomise(network: Any, seed: int = 0) -> None:
    """Sets random weights that keep signals at scale through any depth; transformers' own give outputs of 1e-20."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2 and min(parameter.shape[:2]) > 4:
            parameter.data = noise / parameter[0].numel() ** 0.5
        elif name.endswith("weight") and parameter.ndim == 1:
            parameter.data = 1 + 0.1 * noise
        else:
            parameter.data = 0.5 * noise if parameter.ndim >= 2 else 0.1 * noise


def save_as_folder(network: Any, folder: Path) -> Path:
    """Saves a network as a Hugging Face folder (config.json and model.safetensors) and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": network.config.model_type}))
    return folder
