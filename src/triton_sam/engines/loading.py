"""A version folder of a segmenter -> the engine that runs it best here; says so where that is not the first choice."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from triton_sam.engines.base import Engine
from triton_sam.errors import SetupError
from triton_sam.settings import Settings
from triton_sam.specs import CPU_DECODER_FILE, CPU_ENCODER_FILE, DECODER_FILE, ENCODER_FILE, NETWORK_FILE, ModelSpec

log = logging.getLogger(__name__)


def load_engine(spec: ModelSpec, folder: Path, settings: Settings) -> Engine:
    """The warmed-up engine of a model.

    Args:
        spec: as the folder's version has it.
        folder: with ONNX graphs, the weights for torch, or both.
    """
    reason = _why_not_torch(folder, settings)
    if not reason:
        from triton_sam.engines.torch.engine import load_torch_engine

        return load_torch_engine(spec, folder / NETWORK_FILE, settings)
    if not (folder / ENCODER_FILE).is_file():
        raise SetupError(
            f"{spec.id} has no ONNX graphs, and torch cannot run it because {reason}: "
            f"set it up anew with `triton-sam setup {spec.id} --engine torch`"
        )
    if settings.engine == "torch":
        raise SetupError(f"TRITON_SAM_ENGINE=torch, but {reason}; TRITON_SAM_DEVICE=cpu runs it without a GPU, slowly")
    if (folder / NETWORK_FILE).is_file() and settings.engine == "auto":
        log.warning("%s runs on ONNX Runtime: %s", spec.id, reason)
    return _load_onnx(spec, folder, settings)


def _why_not_torch(folder: Path, settings: Settings) -> str:
    """Empty where the torch engine is to be taken, else what speaks against it."""
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
        raise SetupError(f"{spec.id} needs onnxruntime here: pip install 'triton-sam[server]'")
    from triton_sam.engines.onnx import OnnxEngine, choose_providers
    from triton_sam.export.eight_bits import has_dot_products

    providers = choose_providers(settings.device, tensorrt=settings.onnx_tensorrt)
    encoder, decoder = folder / ENCODER_FILE, folder / DECODER_FILE
    fast_encoder, fast_decoder = folder / CPU_ENCODER_FILE, folder / CPU_DECODER_FILE
    on_cpu = len(providers) == 1
    # Without such instructions little is gained, and masks would differ for nothing.
    if settings.fast_encoder and on_cpu and fast_encoder.is_file() and has_dot_products():
        encoder = fast_encoder
    if settings.fast_decoder and on_cpu and fast_decoder.is_file():
        decoder = fast_decoder
    engine = OnnxEngine(
        spec,
        encoder,
        decoder,
        threads=settings.threads,
        max_batch=settings.click_batch,
        providers=providers,
    )
    engine.warm_up()
    return engine
