"""The segmentation networks in torch, built the same way for the exporter and the torch engine.

Import from outside: ``segmenters``. Needs torch and transformers; it must not know checkpoints or servers.
"""
