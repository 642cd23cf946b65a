"""Loads the engine of a checkpoint: chooses device, dtype and memory, then reads the weights."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from triton_sam.engines.vlm.adapters import ChatAdapter, GroundedAdapter
from triton_sam.engines.vlm.base import Engine
from triton_sam.engines.vlm.generate import GeneratingEngine, ModelAdapter
from triton_sam.engines.vlm.graphs import StepDecoder, can_step
from triton_sam.engines.vlm.remote_code import Parts, load_network
from triton_sam.engines.vlm.remote_engine import RemoteCodeEngine
from triton_sam.errors import SetupError, TritonSamError, Unavailable
from triton_sam.models.vlm_specs import Adapter, VlmSpec
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
#: Memory of a model as a multiple of its weights: also activations and caches of a batch; on a GPU the buffers of
#: :mod:`graphs` too (LLaVA 7B on an H200: 14.1 GB of weights, 18.7 GB in use).
_ROOM = {"cpu": 1.15, "cuda": 1.4}
_FOUR_BYTES = 4
#: The checkpoint's own dtype.
STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model runs.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: name of torch's type, or STORED.
        nbytes: memory that it will need.
        graphs: whether decode steps may run as CUDA graphs.
    """

    device: str
    dtype: str
    nbytes: int
    graphs: bool = True


def choose_placement(spec: VlmSpec, folder: Path, settings: Settings, available: Callable[[str], int]) -> Placement:
    """Chooses by the settings and, if they are ``auto``, by what fits into memory.

    Args:
        available: device -> bytes that a model may use there.
    """
    device = settings.vlm_device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise SetupError("TRITON_SAM_VLM_DEVICE is cuda and torch sees no GPU here: set it to auto or cpu")
    numbers, nbytes = count_numbers(folder)
    if spec.remote_code:  # such code depends on the checkpoint's dtype
        return Placement(device, STORED, int(nbytes * _ROOM[device]))
    if settings.vlm_dtype != "auto":
        dtype: str = settings.vlm_dtype
    elif device == "cuda":
        dtype = "bfloat16"
    else:  # full precision if it fits
        dtype = "float32" if int(numbers * _FOUR_BYTES * _ROOM[device]) <= available(device) else "bfloat16"
    nbytes = int(numbers * getattr(torch, dtype).itemsize * _ROOM[device])
    return Placement(device, dtype, nbytes, settings.vlm_graphs)


def count_numbers(folder: Path) -> tuple[int, int]:
    """(parameters, bytes) of the checkpoint's safetensors files, from their headers alone."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SetupError(f"{folder} has no .safetensors file: give the folder of a transformers checkpoint")
    total = nbytes = 0
    for file in files:
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > file.stat().st_size:
                    raise ValueError
                header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            total += sum(math.prod(entry["shape"]) for entry in header.values())
            nbytes += sum(end - begin for begin, end in (entry["data_offsets"] for entry in header.values()))
        except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError):
            raise SetupError(f"{file} is damaged: download the checkpoint again") from None
    return total, nbytes


def load_engine(spec: VlmSpec, folder: Path, placement: Placement, batch: int, parts: Parts = dict) -> Engine:
    """Reads a checkpoint; SetupError if it is damaged or belongs to another model.

    Args:
        parts: returns the folders of ``spec.parts``.
    """
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if spec.adapter is Adapter.OWN_CODE:
            # This runs the checkpoint's code: of a pinned revision, or of the user's own folder.
            network = load_network(folder, parts)
            return RemoteCodeEngine(network.to(placement.device).eval())
        # No pickles, no code, no network access: only files of this folder are used.
        processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        network, report = transformers.AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=getattr(torch, placement.dtype),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would use random weights instead
            raise ValueError(f"it is incomplete, {missing[0]} is missing")
        adapter = _ADAPTERS[spec.adapter](processor, network, spec)
        network = network.to(placement.device).eval()
        steps = placement.graphs and placement.device == "cuda" and can_step(network)
        beside_weights = placement.nbytes - sum(tensor.nbytes for tensor in network.parameters())
        decoder = StepDecoder(network, max_bytes=beside_weights) if steps else None
        return GeneratingEngine(network, adapter, batch, decoder)
    except torch.OutOfMemoryError:
        raise Unavailable(
            f"{spec.name} does not fit into the GPU's memory: stop other programs, or set TRITON_SAM_VLM_DEVICE=cpu"
        ) from None
    except TritonSamError:
        raise
    except Exception as error:
        log.exception("%s cannot be loaded from %s", spec.id, folder)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SetupError(
            f"the checkpoint of {spec.id} cannot be loaded ({reason}): run `triton-sam pull {spec.id}` again, or "
            "check the folder given with --checkpoint"
        ) from None


_ADAPTERS: dict[Adapter, Callable[[Any, Any, VlmSpec], ModelAdapter]] = {
    Adapter.CHAT: ChatAdapter,
    Adapter.GROUNDED: GroundedAdapter,
}
