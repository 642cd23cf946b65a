"""An older name that scripts use: ``from triton_client import TritonVLMClient``."""

from __future__ import annotations

import warnings

from triton_sam.client.vlm_client import TritonVLMClient

__all__ = ["TritonVLMClient"]

warnings.warn(
    "the module triton_client is now part of triton_sam: write `from triton_sam import TritonVLMClient`",
    DeprecationWarning,
    stacklevel=2,
)
