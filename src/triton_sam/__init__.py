"""triton-sam: promptable vision models on NVIDIA Triton Inference Server."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_sam.client import SAM2TritonClient, Segmentation
    from triton_sam.masks import MaskSet
    from triton_sam.speculative import (
        SessionStatus,
        SpeculativeSAM2Client,
        queue_multiple_requests,
        wait_for_latest_result,
    )
    from triton_sam.vlm import AsyncTritonVLMClient, TritonVLMClient

__version__ = "0.1.0"

#: Public names and where they live; loaded on first use so that the server's process never imports the client.
_HOMES = {
    "AsyncTritonVLMClient": "triton_sam.vlm",
    "MaskSet": "triton_sam.masks",
    "SAM2TritonClient": "triton_sam.client",
    "Segmentation": "triton_sam.client",
    "SessionStatus": "triton_sam.speculative",
    "SpeculativeSAM2Client": "triton_sam.speculative",
    "TritonVLMClient": "triton_sam.vlm",
    "queue_multiple_requests": "triton_sam.speculative",
    "wait_for_latest_result": "triton_sam.speculative",
}
__all__ = [
    "AsyncTritonVLMClient",
    "MaskSet",
    "SAM2TritonClient",
    "Segmentation",
    "SessionStatus",
    "SpeculativeSAM2Client",
    "TritonVLMClient",
    "__version__",
    "queue_multiple_requests",
    "wait_for_latest_result",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
