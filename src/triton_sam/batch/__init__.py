"""Batch jobs: masks for many images, that survive whatever happens on the way."""
