"""Loads the best engine for a segmenter on this machine, and logs why if it is not the preferred one."""

from __future__ import annotations

import importlib.util
import logging
import time
from pathlib import Path
from typing import Any

from triton_sam.engines.base import EIGHT_BIT, Engine, ResultMemory
from triton_sam.engines.device_list import visible_gpus
from triton_sam.engines.early_start import create_context, read_ahead
from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.specs import (
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    NETWORK_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    ModelSpec,
    Precision,
)
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_NUMBERS = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.INT8: EIGHT_BIT}


def load_engine(spec: ModelSpec, folder: Path, settings: Settings, memory: ResultMemory | None = None) -> Engine:
    """The warmed-up engine of a model.

    Args:
        spec: as the folder's version has it.
        folder: with ONNX graphs, the weights for torch, or both.
        memory: for masks that a GPU has made; None uses memory of this process.
    """
    begun = time.perf_counter()
    if _may_use_torch(folder, settings):
        read_ahead(folder / NETWORK_FILE)
        if settings.device != "cpu" and visible_gpus():
            create_context()
    reason = _why_not_torch(folder, settings)
    if not reason:
        from triton_sam.engines.torch.loading import load_torch_engine

        log.info("%s: torch was imported in %.1f s", spec.id, time.perf_counter() - begun)
        return load_torch_engine(spec, folder / NETWORK_FILE, settings, memory)
    if not (folder / ENCODER_FILE).is_file():
        raise SetupError(
            f"{spec.id} has no ONNX graphs, and torch cannot run it because {reason}: "
            f"set it up again with `triton-sam setup {spec.id} --engine torch`"
        )
    if settings.engine == "torch":
        raise SetupError(f"TRITON_SAM_ENGINE=torch, but {reason}; TRITON_SAM_DEVICE=cpu runs it without a GPU, slowly")
    if (folder / NETWORK_FILE).is_file() and settings.engine == "auto":
        log.warning("%s runs on ONNX Runtime: %s", spec.id, reason)
    return _load_onnx(spec, folder, settings)


def _may_use_torch(folder: Path, settings: Settings) -> bool:
    """Whether the torch engine is wanted, and has weights."""
    return settings.engine != "onnx" and (folder / NETWORK_FILE).is_file()


def _why_not_torch(folder: Path, settings: Settings) -> str:
    """Why the torch engine cannot be used; empty if it can."""
    if settings.engine == "onnx":
        return "TRITON_SAM_ENGINE=onnx"
    if not (folder / NETWORK_FILE).is_file():
        return f"it has no {NETWORK_FILE}: set it up with --engine torch"
    for package in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    from triton_sam.engines.torch.devices import why_not

    return why_not(settings)


def _load_onnx(spec: ModelSpec, folder: Path, settings: Settings) -> Engine:
    if importlib.util.find_spec("onnxruntime") is None:
        raise SetupError(f"{spec.id} needs onnxruntime here: {install_extra('server')}")
    from triton_sam.engines.onnx import OnnxEngine, choose_providers

    providers = choose_providers(settings.device, tensorrt=settings.onnx_tensorrt)
    encoder, decoder, numbers = folder / ENCODER_FILE, folder / DECODER_FILE, _NUMBERS[spec.graphs.precision]
    if len(providers) == 1:  # the CPU
        eight_bits = _eight_bit_encoder(spec, folder, settings)
        if eight_bits is not None:
            encoder, numbers = eight_bits, EIGHT_BIT
        elif settings.cpu_encoder and (folder / CPU_ENCODER_FILE).is_file():
            encoder = folder / CPU_ENCODER_FILE
        if settings.fast_decoder and (folder / CPU_DECODER_FILE).is_file():
            decoder = folder / CPU_DECODER_FILE
    options: dict[str, Any] = {
        "encoder_numbers": numbers,
        "threads": settings.threads,
        "max_batch": settings.click_batch,
        "providers": providers,
    }
    if spec.memory is None:
        engine: OnnxEngine = OnnxEngine(spec, encoder, decoder, **options)
    else:
        from triton_sam.engines.onnx_tracking import OnnxTrackingEngine

        engine = OnnxTrackingEngine(spec, encoder, decoder, memory=folder, **options)
    engine.warm_up()
    return engine


def _eight_bit_encoder(spec: ModelSpec, folder: Path, settings: Settings) -> Path | None:
    """The file of the 8-bit encoder if it was requested, because it changes masks; else None."""
    from triton_sam.core.cpu_features import has_dot_products

    if settings.fast_encoder is False:
        return None
    # Older versions wrote the old file for every model, without a request.
    names = [EIGHT_BIT_ENCODER_FILE, *([OLD_EIGHT_BIT_ENCODER_FILE] if settings.fast_encoder else [])]
    found = [folder / name for name in names if (folder / name).is_file()]
    if found and not has_dot_products():
        # It would hardly be faster, and masks would differ for nothing.
        log.warning("%s is served with its float32 encoder: this CPU has no 8-bit dot products", spec.id)
        return None
    if settings.fast_encoder and not found and not spec.graphs.exported:
        log.warning(
            "%s is served with its float32 encoder: set up the 8-bit one with `triton-sam setup %s --fast`",
            spec.id,
            spec.id,
        )
    return found[0] if found else None
