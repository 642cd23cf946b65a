"""The suffixes of files that a job reads."""

from __future__ import annotations

import os
from pathlib import PurePath

#: With one image; their first bytes need not be read to know that.
PICTURES = frozenset(
    (
        ".png",
        ".apng",
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".webp",
        ".bmp",
        ".dib",
        ".gif",
        ".pbm",
        ".pgm",
        ".ppm",
        ".pnm",
        ".jp2",
        ".j2k",
        ".j2c",
        ".jpf",
        ".jpx",
        ".jpc",
    )
)
TIFFS = frozenset((".tif", ".tiff", ".btf", ".tf8"))
LISTS = frozenset((".txt", ".lst"))
READ = "PNG, JPEG, TIFF, WebP, BMP, GIF, PPM and JPEG 2000 files, and Zarr arrays"


def is_image(name: str) -> bool:
    """Whether the suffix is one of an image."""
    suffix = suffix_of(name)
    return suffix in PICTURES or suffix in TIFFS


def suffix_of(name: str | PurePath) -> str:
    """In small letters, with its dot."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - a million of them
