"""Engines run the networks: images to embeddings, prompts to logits.

From outside: ``base`` (Engine, Row, Decoded) and ``loading``. No Triton, and no I/O except loading.
"""
