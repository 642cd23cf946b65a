"""From a checkpoint's folder to an engine: where it runs, in which numbers, and how much memory that takes."""

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

from triton_sam.engines.vlm.base import Engine
from triton_sam.engines.vlm.generate import GeneratingEngine, Speaker
from triton_sam.engines.vlm.graphs import StepDecoder, can_step
from triton_sam.engines.vlm.own_code import OwnCodeEngine
from triton_sam.engines.vlm.remote_code import Parts, load_network
from triton_sam.engines.vlm.speakers import ChatSpeaker, GroundedSpeaker
from triton_sam.errors import SetupError, TritonSamError, Unavailable
from triton_sam.models.vlm_specs import Adapter, VlmSpec
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
#: A model with what it takes beside its weights, as their multiple: activations and caches of a batch; on a GPU also
#: the buffers of :mod:`graphs` (LLaVA 7B on an H200: 14.1 GB of weights, 18.7 GB held).
_ROOM = {"cpu": 1.15, "cuda": 1.4}
_FOUR_BYTES = 4
#: The numbers that a checkpoint has.
STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model shall run.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: name of torch's type, or STORED.
        nbytes: memory that it will take.
        graphs: whether decode steps may be CUDA graphs.
    """

    device: str
    dtype: str
    nbytes: int
    graphs: bool = True


def choose_placement(spec: VlmSpec, folder: Path, settings: Settings, available: Callable[[str], int]) -> Placement:
    """By the settings and, where they leave it open, by what fits.

    Args:
        available: device -> bytes that a model may take there.
    """
    device = settings.vlm_device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise SetupError("TRITON_SAM_VLM_DEVICE is cuda and torch sees no GPU here: set it to auto or cpu")
    numbers, nbytes = count_numbers(folder)
    if spec.remote_code:  # such code counts on the numbers that it was written for
        return Placement(device, STORED, int(nbytes * _ROOM[device]))
    if settings.vlm_dtype != "auto":
        dtype: str = settings.vlm_dtype
    elif device == "cuda":
        dtype = "bfloat16"
    else:  # the exact numbers where there is room for them
        dtype = "float32" if int(numbers * _FOUR_BYTES * _ROOM[device]) <= available(device) else "bfloat16"
    nbytes = int(numbers * getattr(torch, dtype).itemsize * _ROOM[device])
    return Placement(device, dtype, nbytes, settings.vlm_graphs)


def count_numbers(folder: Path) -> tuple[int, int]:
    """Numbers in the checkpoint's safetensors files and the bytes that they take, from their headers alone."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SetupError(f"{folder} has no .safetensors file: a checkpoint of transformers has one or several")
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
            raise SetupError(f"{file} is damaged: get the checkpoint again") from None
    return total, nbytes


def load_engine(spec: VlmSpec, folder: Path, placement: Placement, batch: int, parts: Parts = dict) -> Engine:
    """Reads a checkpoint; SetupError in one sentence where it is none, or one of another model.

    Args:
        parts: gives the folders of ``spec.parts``.
    """
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if spec.adapter is Adapter.OWN_CODE:
            # Code of the checkpoint runs here: of a pinned revision, or of a user's own folder.
            network = load_network(folder, parts)
            return OwnCodeEngine(network.to(placement.device).eval())
        # No pickles, no code, and nothing is looked for elsewhere: the folder is all there is.
        processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        network, report = transformers.AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=getattr(torch, placement.dtype),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would go on with random numbers in their place
            raise ValueError(f"it is not whole, {missing[0]} is missing")
        speaker = _SPEAKERS[spec.adapter](processor, network)
        network = network.to(placement.device).eval()
        steps = placement.graphs and placement.device == "cuda" and can_step(network)
        beside_weights = placement.nbytes - sum(tensor.nbytes for tensor in network.parameters())
        decoder = StepDecoder(network, max_bytes=beside_weights) if steps else None
        return GeneratingEngine(network, speaker, batch, decoder)
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
            "look at what --checkpoint named"
        ) from None


_SPEAKERS: dict[Adapter, Callable[[Any, Any], Speaker]] = {
    Adapter.CHAT: ChatSpeaker,
    Adapter.GROUNDED: GroundedSpeaker,
}
