"""Written by `triton-sam setup`; the code lives in the triton_sam package."""

from triton_sam.backend.vlm import TritonPythonModel  # noqa: F401
