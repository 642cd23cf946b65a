"""triton-sam: promptable vision models on NVIDIA Triton Inference Server."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_sam.batch.job import BatchJob
    from triton_sam.client.concept_predictor import ConceptPredictor
    from triton_sam.client.concepts import ConceptSegmentation
    from triton_sam.client.speculative import (
        SessionStatus,
        SpeculativeSAM2Client,
        queue_multiple_requests,
        wait_for_latest_result,
    )
    from triton_sam.client.sync_client import SAM2TritonClient, Segmentation
    from triton_sam.client.video_async import AsyncSAM2VideoClient
    from triton_sam.client.video_client import SAM2VideoClient
    from triton_sam.client.vlm_client import AsyncTritonVLMClient, TritonVLMClient
    from triton_sam.core.masks import MaskSet
    from triton_sam.video.stacks.label_volumes import save_labels

__version__ = "0.1.0"

#: Public names and where they live; loaded on first use so that the server's process never imports the client.
_HOMES = {
    "AsyncSAM2VideoClient": "triton_sam.client.video_async",
    "AsyncTritonVLMClient": "triton_sam.client.vlm_client",
    "BatchJob": "triton_sam.batch.job",
    "ConceptPredictor": "triton_sam.client.concept_predictor",
    "ConceptSegmentation": "triton_sam.client.concepts",
    "MaskSet": "triton_sam.core.masks",
    "SAM2TritonClient": "triton_sam.client.sync_client",
    "SAM2VideoClient": "triton_sam.client.video_client",
    "Segmentation": "triton_sam.client.sync_client",
    "SessionStatus": "triton_sam.client.speculative",
    "SpeculativeSAM2Client": "triton_sam.client.speculative",
    "TritonVLMClient": "triton_sam.client.vlm_client",
    "queue_multiple_requests": "triton_sam.client.speculative",
    "save_labels": "triton_sam.video.stacks.label_volumes",
    "wait_for_latest_result": "triton_sam.client.speculative",
}
__all__ = [
    "AsyncSAM2VideoClient",
    "AsyncTritonVLMClient",
    "BatchJob",
    "ConceptPredictor",
    "ConceptSegmentation",
    "MaskSet",
    "SAM2TritonClient",
    "SAM2VideoClient",
    "Segmentation",
    "SessionStatus",
    "SpeculativeSAM2Client",
    "TritonVLMClient",
    "__version__",
    "queue_multiple_requests",
    "save_labels",
    "wait_for_latest_result",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
