"""Decodes image files to RGB, with limits on their size, and encodes a client's arrays.

The result is what a person sees: EXIF rotation is applied, transparency is composited on white, CMYK and palettes
become RGB, and 16-bit images are scaled by the bit depth that they really use.
"""

from __future__ import annotations

import base64
import io
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from triton_sam.core.array_images import picture_of_array
from triton_sam.core.pillow_pictures import PillowPicture, to_rgb
from triton_sam.core.tiff import TiffPicture
from triton_sam.core.tiff_directories import is_tiff
from triton_sam.core.untrusted import check_size, guarded
from triton_sam.errors import InvalidInput

__all__ = ["EncodedImage", "check_size", "file_bytes", "from_base64", "to_rgb"]


class EncodedImage:
    """An image file whose header was read: its size is known, its pixels are not decoded yet."""

    def __init__(self, data: bytes | memoryview, *, max_bytes: int, max_pixels: int) -> None:
        if len(data) == 0:
            raise InvalidInput("the image is empty: send the bytes of an image file")
        check_size(len(data), max_bytes)
        self.data = data
        self._content: TiffPicture | PillowPicture = guarded(
            lambda: TiffPicture(data, max_pixels) if is_tiff(data) else PillowPicture(data, max_pixels)
        )
        #: (width, height) as a person sees it, after EXIF rotation.
        self.size: tuple[int, int] = self._content.size

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether any JPEG decoder gives the same picture as :meth:`pixels`: no CMYK, no rotation."""
        return self._content.is_plain_jpeg

    def pixels(self) -> Image.Image:
        """The decoded picture, mode RGB, upright."""
        return guarded(self._content.pixels)


def from_base64(text: str, field: str) -> bytes:
    """base64 or a data URL of an image file -> its bytes; InvalidInput names the field."""
    bare = text.rpartition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(bare.encode("ascii").translate(None, b" \t\r\n"), validate=True)
    except ValueError as error:  # binascii.Error is one, and so is text that is not ASCII
        raise InvalidInput(f"{field} is not base64 ({error}): send base64 of an image file, or a data URL") from None


def file_bytes(
    image: str | PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[Any] | Image.Image,
) -> bytes:
    """The bytes that a client sends: the file's own, or a quickly compressed PNG of an array or Pillow image.

    Args:
        image: a path; the bytes of an image file; an array as in :func:`picture_of_array`; a Pillow image.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | PathLike):
        try:
            return Path(image).expanduser().read_bytes()
        except (OSError, ValueError, RuntimeError) as error:  # no such file, a NUL in it, no such user
            raise InvalidInput(
                f"cannot read the image {str(image)!r}: {getattr(error, 'strerror', None) or error}"
            ) from None
    if isinstance(image, np.ndarray):
        image = picture_of_array(image)
    if not isinstance(image, Image.Image):
        raise InvalidInput(f"an image is a path, bytes, an array or a Pillow image, not {type(image).__name__}")
    picture = image
    return guarded(lambda: _png_of(picture))


def _png_of(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(picture)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = to_rgb(upright)
    upright.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
