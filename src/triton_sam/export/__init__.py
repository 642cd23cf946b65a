"""Checkpoint -> ONNX graphs that equal it, and the rewrites that make graphs fast.

From outside: ``run`` (export), ``contract``, ``cpu_encoder`` and ``cpu_decoder`` (rewrites). It knows no server.
"""
