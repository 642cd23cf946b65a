"""Triton model repositories: written from the catalogue or an export, and read again.

From outside: ``setup`` (one model), ``setup_models`` (names as users type them), ``segmenters`` and ``vlms`` (find,
write, remove), ``configs``. It starts nothing: ``triton_sam.server`` runs a server.
"""
