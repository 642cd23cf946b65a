"""Builds the torch engine of a model from its weights file."""

from __future__ import annotations

import dataclasses
import gc
import logging
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from triton_sam.engines.base import ResultMemory
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.devices import room_for_cache, room_for_videos, slowness
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import choose_options
from triton_sam.errors import SetupError
from triton_sam.models.specs import TOKENIZER_FILE, ModelSpec
from triton_sam.networks.segmenters import has_concepts, has_memory, import_parts, load_layers
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
#: Slowdown against float32 that is worth a warning; a smaller one may be accepted to save memory.
_TOO_SLOW = 20.0


def load_torch_engine(
    spec: ModelSpec, weights: Path, settings: Settings, memory: ResultMemory | None = None
) -> TorchEngine:
    """Builds a model from its weights file and warms it up. Logs every step.

    It returns an engine that serves uncompiled, and compiles while it serves: see its ``readiness``. Videos get a part
    of the remaining GPU memory, ``settings.video_bytes`` at most, and the embedding cache the rest,
    ``settings.cache_bytes`` at most.
    """
    started = time.perf_counter()
    options = dataclasses.replace(choose_options(spec, settings), memory=memory)
    device = options.device
    times = slowness(options.dtype, device)
    if times > _TOO_SLOW:
        log.warning(
            "%s: on this CPU %s is about %.0f times as slow as float32: set TRITON_SAM_TORCH_DTYPE=float32",
            spec.id,
            settings.torch_dtype,
            times,
        )
    network, tokenizer = _loaded(spec, weights)
    log.info("%s: weights loaded after %.1f s", spec.id, time.perf_counter() - started)
    try:
        engine = TorchEngine(spec, network, options, tokenizer)
        engine.warm_up()
        each = engine.bytes_each
        videos = room_for_videos(settings.video_bytes, device) if engine.capacity.tracks else 0
        room = room_for_cache(settings.cache_bytes, each, device, spec.id, videos)
    except torch.cuda.OutOfMemoryError:
        raise SetupError(
            f"{spec.id} does not fit into the GPU's memory: stop other programs on it, use a smaller model, "
            "or set TRITON_SAM_ENCODE_BATCH=1"
        ) from None
    except RuntimeError as error:
        log.exception("%s could not be warmed up", spec.id)
        raise SetupError(f"{spec.id} does not run on torch here: {error}") from None
    if room < settings.cache_bytes:
        log.warning("%s caches only %.0f MiB of embeddings: the GPU has no more free memory", spec.id, room / 2**20)
    if engine.capacity.tracks and videos < settings.video_bytes:
        log.warning("%s gives videos only %.0f MiB: the GPU has no more free memory", spec.id, videos / 2**20)
    engine.capacity = dataclasses.replace(
        engine.capacity, cache_bytes=room, video_bytes=videos if engine.capacity.tracks else None
    )
    if options.compile_mode is not None:
        # Loading compiled code creates many objects, and so starts collections. One of everything that is loaded by now
        # would hold Python's lock for 0.2 to 0.4 s.
        gc.collect()
        gc.freeze()
        engine.speed_up(settings.home / "compiled", started)
    return engine


def _loaded(spec: ModelSpec, weights: Path) -> tuple[Any, TextTokenizer | None]:
    """The network with everything that the model serves, and what reads its texts."""
    try:
        tensors = load_file(weights)
        network = load_layers(spec.architecture, spec.side, tensors)
    except Exception as error:  # safetensors, torch and the file system raise different ones
        raise SetupError(f"{weights.name} of {spec.id} does not load: {error}") from None
    if spec.memory is not None and not has_memory(tensors):
        raise SetupError(f"{weights.name} of {spec.id} has no memory for videos: set the model up again")
    if spec.concepts is None:
        return network, None
    if not has_concepts(tensors):
        raise SetupError(f"{weights.name} of {spec.id} has nothing for words: set the model up again")
    return network, TextTokenizer(weights.with_name(TOKENIZER_FILE), spec.concepts.tokens)


def import_all(spec: ModelSpec) -> None:
    """Imports what is not imported with this module and is needed to load a model; no device is touched."""
    import_parts(spec.architecture)
