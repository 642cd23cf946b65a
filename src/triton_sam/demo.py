"""The public name of the sample photograph; it lives in ``triton_sam.core.samples``."""

from triton_sam.core.samples import sample_photograph

__all__ = ["sample_photograph"]
