"""Reads checkpoint files without running code, recognises the model variant and loads the weights into a network."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from triton_sam.errors import InvalidInput
from triton_sam.export.checkpoint_keys import MappedWeights, map_keys
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.models.catalog import CATALOG
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import build

#: Image-mode checkpoints may lack it, and no mask depends on it.
_OPTIONAL = re.compile(r"^mask_decoder\.pred_obj_score_head\.")
_NESTED = ("model", "state_dict")
_LISTED = 5


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.pt``/``.pth`` (plain tensors only) or ``.safetensors`` file, or of a Hugging Face folder."""
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise InvalidInput(f"there is no checkpoint {path}: name a .pt, .pth or .safetensors file or a folder")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pt", ".pth"):
        return _read_torch(path)
    raise InvalidInput(f"{path.name} is not a .pt, .pth or .safetensors file, nor a Hugging Face folder")


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on formats; real problems are raised
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch's exceptions for damaged files have no narrower common base class
        if _holds_objects(error):
            raise InvalidInput(
                f"{path.name} holds more than tensors (code or objects), and only tensors are loaded: "
                "save its state_dict alone, best as .safetensors"
            ) from error
        raise InvalidInput(_damaged(path)) from error
    while isinstance(loaded, Mapping) and any(isinstance(loaded.get(name), Mapping) for name in _NESTED):
        loaded = next(loaded[name] for name in _NESTED if isinstance(loaded.get(name), Mapping))
    tensors = (
        {key: value for key, value in loaded.items() if isinstance(key, str) and isinstance(value, Tensor)}
        if isinstance(loaded, Mapping)
        else {}
    )
    if not tensors:
        raise InvalidInput(f"{path.name} holds no named tensors: it is not a checkpoint of a model")
    return tensors


def _holds_objects(error: Exception) -> bool:
    """Whether torch refused a file because it holds objects, and not because it is no pickle at all (a web page)."""
    if isinstance(error, pickle.UnpicklingError):
        return "Unsupported operand" not in str(error)
    return "TorchScript" in str(error)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(_damaged(path)) from error


def _damaged(path: Path) -> str:
    return (
        f"{path.name} is damaged or truncated ({path.stat().st_size:,} bytes): "
        "download it again and compare its size and sha256"
    )


def _read_folder(folder: Path) -> dict[str, Tensor]:
    config = folder / "config.json"
    if not config.is_file():
        raise InvalidInput(f"{folder} has no config.json: a Hugging Face folder has that and model.safetensors")
    try:
        kind = str(json.loads(config.read_text())["model_type"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise InvalidInput(f"{config} names no model_type: it is not a configuration of a model") from None
    if not kind.startswith("sam"):
        raise InvalidInput(f"{folder} holds a model of type {kind!r}, not one of the SAM families")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InvalidInput(f"{folder} has no model.safetensors: pickled weights (.bin) are not read")
    parts = re.search(r"-of-(\d+)$", files[0].stem)
    if parts and len(files) != int(parts[1]):
        raise InvalidInput(
            f"{folder} has {len(files)} of the {int(parts[1])} parts of its weights: download the others too"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_safetensors(file)
    return tensors


def recognise(weights: MappedWeights) -> list[ModelSpec]:
    """The catalogue rows that these tensors fit; SAM 2 and 2.1 cannot be told apart without their memory.

    Models that are put together here are none of those that checkpoints are published of.
    """
    seen = _signature(weights.tensors)
    published = [spec for spec in CATALOG.values() if spec.assembly is None]
    rows = [spec for spec in published if _signature_of(spec.architecture) == seen]
    same_generation = [spec for spec in rows if spec.architecture.generation in ("", weights.generation)]
    return same_generation or (rows if not weights.generation else [])


def check_variant(weights: MappedWeights, spec: ModelSpec) -> None:
    """Raises InvalidInput, with the right id, if the tensors are another model's."""
    generation = spec.architecture.generation
    other_generation = bool(weights.generation and generation and weights.generation != generation)
    if _signature(weights.tensors) == _signature_of(spec.architecture) and not other_generation:
        return
    rows = recognise(weights)
    if rows:
        names = " or ".join(row.id for row in rows)
        raise InvalidInput(f"this checkpoint is {names}, not {spec.id}: export it as {rows[0].id}")
    backbone, width, depth = _signature(weights.tensors)
    what = (
        f"{backbone.value} encoder of width {width} with {depth} blocks"
        if backbone
        else "network without a SAM encoder"
    )
    raise InvalidInput(f"this checkpoint is a {what}, not {spec.id} nor another model of the catalogue")


def _signature_of(architecture: Architecture) -> tuple[Backbone | None, int, int]:
    return architecture.backbone, architecture.width, sum(architecture.depths)


#: Backbone -> (a tensor whose first axis is the width, a pattern of the numbered blocks' prefix).
_MARKS = {
    Backbone.TINY_VIT: ("vision_encoder.patch_embed.seq.2.c.weight", r"vision_encoder\.layers\.(\d+\.blocks\.\d+)\."),
    Backbone.PERCEPTION: ("vision_encoder.backbone.layer_norm.weight", r"vision_encoder\.backbone\.layers\.(\d+)\."),
    Backbone.HIERA: (
        "vision_encoder.backbone.patch_embed.projection.weight",
        r"vision_encoder\.backbone\.blocks\.(\d+)\.",
    ),
    Backbone.VIT: ("vision_encoder.patch_embed.projection.weight", r"vision_encoder\.layers\.(\d+)\."),
}


def _signature(tensors: Mapping[str, Tensor]) -> tuple[Backbone | None, int, int]:
    for backbone, (mark, blocks) in _MARKS.items():
        if mark in tensors:
            numbers = {match[1] for name in tensors if (match := re.match(blocks, name))}
            return backbone, int(tensors[mark].shape[0]), len(numbers)
    return None, 0, 0


def load_weights(network: Any, path: Path, spec: ModelSpec) -> MappedWeights:
    """Loads a checkpoint into ``network``; one InvalidInput lists all keys that are missing, unknown or misshapen."""
    weights = map_keys(read_checkpoint(path))
    check_variant(weights, spec)
    fill(network, weights)
    return weights


def network_of(spec: ModelSpec, side: int, weights: MappedWeights) -> Any:
    """The model's network with these weights, and with the parts that they have: a memory, and what finds concepts."""
    memory = MEMORY_TRAITS[spec.architecture.generation] if weights.memory else None
    concepts = bool(weights.concepts) and spec.architecture.concepts is not None
    network = build(spec.architecture, side, memory, concepts=concepts)
    fill(network, weights)
    return network


def fill(network: Any, weights: MappedWeights) -> None:
    """Loads mapped weights into a network, upcast to the network's own type; those of the parts that it has."""
    expected = network.state_dict()
    given = dict(weights.tensors)
    for part, tensors_of_part in (("memory_attention", weights.memory), ("concepts", weights.concepts)):
        given |= tensors_of_part if hasattr(network, part) else {}
    tensors = {name: _resized(name, tensor, expected.get(name)) for name, tensor in given.items()}
    missing = [name for name in expected if name not in tensors and not _OPTIONAL.match(name)]
    unknown = [weights.origin.get(name, name) for name in tensors if name not in expected]
    misshapen = [
        f"{weights.origin.get(name, name)} is {list(tensor.shape)} instead of {list(expected[name].shape)}"
        for name, tensor in tensors.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    problems = [
        f"{len(keys)} {kind} ({', '.join(keys[:_LISTED])}{', ...' if len(keys) > _LISTED else ''})"
        for kind, keys in (("missing", missing), ("unknown", unknown), ("misshapen", misshapen))
        if keys
    ]
    if problems:
        raise InvalidInput(f"the checkpoint's keys do not fit the model: {'; '.join(problems)}")
    network.load_state_dict(tensors, strict=False)


def _resized(name: str, tensor: Tensor, expected: Tensor | None) -> Tensor:
    """A position table interpolated to another image size, as the networks themselves do if they can."""
    if expected is None or tensor.shape == expected.shape or tensor.ndim != expected.ndim:
        return tensor
    if name == "vision_encoder.pos_embed" and tensor.shape[3] == expected.shape[3]:
        grid = functional.interpolate(
            tensor.float().permute(0, 3, 1, 2), size=tuple(expected.shape[1:3]), mode="bicubic", align_corners=False
        )
        return grid.permute(0, 2, 3, 1)
    if ".attn.rel_pos_" in name and tensor.shape[1] == expected.shape[1]:
        line = functional.interpolate(tensor.float().T[None], size=expected.shape[0], mode="linear")
        return line[0].T
    return tensor
