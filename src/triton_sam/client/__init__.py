"""The clients that users import, for segmentation and for vision-language models.

From outside: the names below, ``SpeculativeSAM2Client`` and ``TritonVLMClient``; the service also uses ``wire``,
``dispatch`` and the transports. ``core`` holds the logic that the segmentation clients share, without I/O.
Clients know prompts and Triton's protocol, and nothing about how models work.
"""

from triton_sam.client.sync_client import SAM2TritonClient, Segmentation

__all__ = ["SAM2TritonClient", "Segmentation"]
