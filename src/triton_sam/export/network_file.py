"""Writes a network's weights as one safetensors file under transformers' names, which the torch engine loads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from triton_sam.errors import SetupError
from triton_sam.export.checkpoint import check_variant, network_of, read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.concept_graphs import write_traits
from triton_sam.export.memory_graphs import write_description
from triton_sam.export.random_weights import randomise
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import CONCEPTS_FILE, MEMORY_FILE, ModelSpec
from triton_sam.networks.segmenters import build


def write_checkpoint_network(spec: ModelSpec, checkpoint: Path, file: Path, image_size: int | None = None) -> Path:
    """Writes a checkpoint, in any form that an export takes, to ``file`` and returns ``file``.

    If it has a memory, or finds concepts, their descriptions are written beside the file.
    """
    weights = map_keys(read_checkpoint(checkpoint))
    check_variant(weights, spec)
    side = image_size or spec.side
    return _write_all(network_of(spec, side, weights), spec, side, file)


def write_random_network(spec: ModelSpec, file: Path) -> Path:
    """Writes a network of the model's size with random weights, and with a memory, likewise."""
    network = build(spec.architecture, spec.side, MEMORY_TRAITS.get(spec.architecture.generation))
    randomise(network)
    return _write_all(network, spec, spec.side, file)


def _write_all(network: Any, spec: ModelSpec, side: int, file: Path) -> Path:
    _write(network, file)
    if hasattr(network, "memory_attention"):
        write_description(network, spec, file.parent)
    else:
        (file.parent / MEMORY_FILE).unlink(missing_ok=True)  # of other weights
    if hasattr(network, "concepts"):
        write_traits(spec, side, file.parent)
    else:
        (file.parent / CONCEPTS_FILE).unlink(missing_ok=True)
    return file


def _write(network: Any, file: Path) -> None:
    """Writes atomically: a partial file never appears under the final name."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()}
    building = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, building)
        building.replace(file)
    except OSError as error:
        raise SetupError(f"cannot write {file}: {error.strerror or error}") from None
    finally:
        building.unlink(missing_ok=True)
