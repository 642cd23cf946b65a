"""Checks for a CUDA device. A module of its own, so that the check does not import a model library."""

from __future__ import annotations

import torch


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    return bool(torch.cuda.is_available())
