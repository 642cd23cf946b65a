"""The clients: what users import to segment images and to ask about them.

From outside: the names below, ``SpeculativeSAM2Client`` and ``TritonVLMClient``; the service also uses ``wire``,
``dispatch`` and the transports. A client knows prompts and Triton's protocol; it knows nothing of models' insides.
"""

from triton_sam.client.sync_client import SAM2TritonClient, Segmentation

__all__ = ["SAM2TritonClient", "Segmentation"]
