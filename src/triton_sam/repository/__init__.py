"""Triton model repositories: what is written there, by whom, and what is found again.

From outside: ``setup`` (id -> served folder), ``segmenters`` and ``vlms`` (find, write, remove), ``configs``.
It starts nothing: a running server is the business of ``triton_sam.server``.
"""
