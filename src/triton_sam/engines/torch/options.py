"""Options of the torch engine, and their choice for a machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triton_sam.engines.base import ResultMemory
from triton_sam.engines.torch.devices import choose_device, choose_dtypes
from triton_sam.models.specs import ModelSpec
from triton_sam.settings import Settings


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Options of the engine.

    Attributes:
        dtype: of the encoder.
        row_dtype: of cached embeddings and of the decoder.
        compile_mode: torch.compile's mode for what :meth:`TorchEngine.speed_up` compiles; None if it is never called.
        encode_batch: maximum number of images in one run.
        graphs: capture CUDA graphs, on a GPU.
        gpu_jpeg: decode JPEGs on the GPU if it can.
        memory: host memory for masks that a GPU has made; None uses memory of this process.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    row_dtype: torch.dtype = torch.float32
    compile_mode: str | None = None
    encode_batch: int = 1
    graphs: bool = True
    gpu_jpeg: bool = True
    memory: ResultMemory | None = None


def choose_options(spec: ModelSpec, settings: Settings) -> TorchOptions:
    """The options for a model on this machine."""
    device = choose_device(settings)
    mode = settings.torch_compile
    if mode == "auto":
        mode = "default" if device.type == "cuda" else "off"
    return TorchOptions(
        device,
        *choose_dtypes(settings, device, spec),
        compile_mode=None if mode == "off" else mode,
        encode_batch=settings.encode_batch if device.type == "cuda" else 1,
        graphs=settings.torch_graphs,
        gpu_jpeg=settings.gpu_jpeg,
    )
