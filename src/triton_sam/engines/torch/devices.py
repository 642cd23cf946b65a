"""Chooses torch's device and precision, and measures what this machine can do."""

from __future__ import annotations

import time

import torch

from triton_sam.errors import SetupError
from triton_sam.models.architecture import Backbone
from triton_sam.models.specs import ModelSpec
from triton_sam.settings import Settings


def why_not(settings: Settings) -> str:
    """Why the torch engine cannot run with these settings; empty if it can."""
    if settings.device == "cpu":
        return "" if settings.engine == "torch" else "TRITON_SAM_DEVICE=cpu"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device here"


def choose_device(settings: Settings) -> torch.device:
    """The device; call :func:`why_not` first."""
    return torch.device("cpu") if settings.device == "cpu" else torch.device("cuda", 0)


def choose_dtypes(settings: Settings, device: torch.device, spec: ModelSpec) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of the encoder, dtype of cached rows and of the decoder).

    Both half-precision types are equally fast. float16 has 11 bits of precision, bfloat16 only 8, which shows in masks
    (see docs/how/results.md), but float16 overflows at 65,504. It is used for backbones whose real weights stay far
    below, and for all decoders, whose inputs are normalised.
    """
    if settings.torch_dtype == "float32" or (settings.torch_dtype == "auto" and device.type != "cuda"):
        return torch.float32, torch.float32
    if settings.torch_dtype != "auto":
        chosen: torch.dtype = getattr(torch, settings.torch_dtype)
        return chosen, torch.float16 if device.type == "cuda" else torch.float32  # CPUs are slow at float16
    return (torch.float16 if spec.architecture.backbone in _SEEN_IN_RANGE else torch.bfloat16), torch.float16


def slowness(dtype: torch.dtype, device: torch.device) -> float:
    """Time of a matrix product relative to float32: some CPUs have no instructions for half precision.

    Measured with a small product, because torch does not report which instructions it uses.
    """
    if device.type != "cpu" or dtype is torch.float32:
        return 1.0
    return _product_seconds(dtype) / _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    rows, weights = torch.ones(32, 256, dtype=dtype), torch.ones(256, 256, dtype=dtype)
    taken = []
    for _ in range(3):  # the first one includes initialisation
        started = time.perf_counter()
        torch.nn.functional.linear(rows, weights)
        taken.append(time.perf_counter() - started)
    return min(taken)


def room_for_videos(wanted: int, device: torch.device) -> int:
    """Bytes for what is remembered of videos: as many as wanted, or a third of what is free after the warm-up."""
    if device.type != "cuda":
        return wanted
    torch.cuda.empty_cache()
    return min(wanted, int(torch.cuda.mem_get_info(device)[0] * _SHARE_FOR_VIDEOS))


def room_for_cache(wanted: int, each: int, device: torch.device, model_id: str, videos: int = 0) -> int:
    """Bytes for cached embeddings: as many as wanted, or what is free after the model has warmed up.

    Args:
        each: bytes of one embedding; SetupError if not even a few fit.
        videos: bytes that videos get.
    """
    if device.type != "cuda":
        return wanted
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    room = int((free - videos) * _SHARE_FOR_CACHE)
    if room < _LEAST_IMAGES * each:
        raise SetupError(
            f"{model_id} fills the GPU: {free / 2**20:.0f} of {total / 2**20:.0f} MiB are free and an image takes "
            f"{each / 2**20:.0f}; stop other programs on it, use a smaller model, or set TRITON_SAM_ENCODE_BATCH=1"
        )
    return min(wanted, room)


_SEEN_IN_RANGE = frozenset({Backbone.HIERA, Backbone.TINY_VIT})
#: The rest is for incoming images and outgoing masks.
_SHARE_FOR_CACHE = 0.8
_LEAST_IMAGES = 4
_SHARE_FOR_VIDEOS = 1 / 3
