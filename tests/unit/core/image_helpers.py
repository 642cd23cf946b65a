"""Small pictures and files for tests of images."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.images import EncodedImage

MAX_BYTES = 10_000_000
MAX_PIXELS = 100_000_000
EXIF_ORIENTATION = 0x0112

Pixels = npt.NDArray[Any]

# How a camera stores the upright picture under each orientation (EXIF 2.32, tag 0x0112).
STORED: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright.transpose(1, 0, 2), 2),
    8: lambda upright: np.rot90(upright, -1),
}


def open_image(data: bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> EncodedImage:
    return EncodedImage(data, max_bytes=max_bytes, max_pixels=max_pixels)


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    """[H,W,3]; the size that was announced must be the size that came."""
    image = open_image(data)
    picture = image.pixels()
    assert picture.mode == "RGB"
    assert picture.size == image.size
    return np.asarray(picture)


def saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def blocks(height: int = 3, width: int = 4, size: int = 16) -> npt.NDArray[np.uint8]:
    """Large blocks of different colours: no symmetry, and JPEG keeps their middles."""
    colours = np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.kron(colours, np.ones((size, size, 1), np.uint8))


def noise(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_that_declares(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content
