"""Engines for vision-language models, in torch: images and questions in, pieces of text out. No Triton, no network."""
