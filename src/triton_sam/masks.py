"""The public name of masks and their formats; they live in ``triton_sam.core.masks``."""

from triton_sam.core.masks import (
    FORMATS,
    MaskSet,
    decode,
    encode,
    full_size,
    full_size_rle,
    overlay,
    png,
    polygons,
    unpack_bits,
)

__all__ = [
    "FORMATS",
    "MaskSet",
    "decode",
    "encode",
    "full_size",
    "full_size_rle",
    "overlay",
    "png",
    "polygons",
    "unpack_bits",
]
