"""Whether torch has a GPU here; by itself, because looking must not cost the import of a model library."""

from __future__ import annotations

import torch


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    return bool(torch.cuda.is_available())
