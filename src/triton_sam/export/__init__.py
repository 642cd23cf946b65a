"""Exports checkpoints to ONNX graphs that are checked against torch, and rewrites graphs so that they run faster.

Import from outside: ``run`` (export); ``checkpoint``, ``checkpoint_keys``, ``network_file``, ``random_weights`` (torch
weights); ``ort_to_onnx``, ``raw_contract``, ``encoder_adapter``, ``cpu_encoder``, ``cpu_decoder`` (graphs);
``gpu_check``. It must not know servers.
"""
