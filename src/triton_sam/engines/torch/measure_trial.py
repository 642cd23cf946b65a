"""Tries the kernels of :mod:`.measuring` and :mod:`.tracing` before they are used."""

from __future__ import annotations

import logging

import torch

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch import measuring
from triton_sam.engines.torch.measuring import Limits, measured
from triton_sam.engines.torch.tracing import changes

log = logging.getLogger(__name__)
#: Test images for the kernels: larger and smaller than the logits, with several blocks of rows and columns.
_TRIED = (Frame(203, 101, 64, ResizePolicy.SQUASH), Frame(21, 11, 64, ResizePolicy.SQUASH))
#: Pixels that may differ there: rounding may decide about a logit that is almost a threshold.
_FEW = 8


def kernel_measures(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run on a device and give the same as torch's operators. Compiles them."""
    if device.type != "cuda" or measuring.kernel is None:
        return False
    try:
        with torch.inference_mode():
            _try(device, dtype)
        return True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # triton and the compilers that it calls raise many different ones
        log.warning("masks are measured without their kernels, and slower: %s", str(error).partition("\n")[0])
        return False


def _try(device: torch.device, dtype: torch.dtype) -> None:
    ramp = torch.linspace(-40, 40, 2 * 4 * 32 * 32, device=device).sin().to(dtype)
    logits = ramp.view(2, 4, 32, 32)[:, 1:]
    scores = torch.linspace(0, 1, 2 * 5, device=device).view(2, 5)[:, 1:-1]
    limits = Limits(0.2, -0.25, 0.0, 0.25)
    for frame in _TRIED:
        given, expected = (measured(logits, scores, frame, limits, by_kernel=each) for each in (True, False))
        off = int((given - expected).abs().sum())
        crop = (5, 3, 5 + frame.width, 3 + frame.height)
        whole = frame.width + 9, frame.height + 7
        flat = logits.flatten(0, 1)
        traced, known = (changes(flat, 0.0, frame, crop, whole, by_kernel=each) for each in (True, False))
        off = max(off, int((traced != known).sum()) // 4)
        if off > _FEW:
            raise ValueError(f"{off} pixels differ")
