"""Engines run the graphs: images to embeddings, prompts to logits. No Triton, no I/O but loading."""
