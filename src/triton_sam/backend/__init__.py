"""The code that runs inside Triton: Python models, their scheduler and their embedding cache. No torch, no client.

From outside: only the ``TritonPythonModel`` classes. The ``model.py`` files of users' model repositories import them
from ``segmenter``, ``onnx_model``, ``vlm`` and ``vlm_door``: these module names must not change.
"""
