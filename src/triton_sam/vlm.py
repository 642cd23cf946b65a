"""The public name of the clients for vision-language models; they live in ``triton_sam.client``."""

from triton_sam.client.vlm_client import Answer, AsyncTritonVLMClient, Entity, Grounded, Region, TritonVLMClient

__all__ = ["Answer", "AsyncTritonVLMClient", "Entity", "Grounded", "Region", "TritonVLMClient"]
