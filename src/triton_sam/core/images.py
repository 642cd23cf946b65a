"""Decodes image files to RGB, with limits on their size, and encodes a client's arrays.

The result is what a person sees: EXIF rotation is applied, transparency is composited on white, CMYK and palettes
become RGB, and 16-bit images are scaled by the bit depth that they really use.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from triton_sam.errors import InvalidInput, TooLarge

RgbArray = npt.NDArray[np.uint8]
_T = TypeVar("_T")
_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Formats whose size is known before a pixel is decoded. Others (ICO, EPS) decode or run code when they are opened.
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "JPEG2000")
_SIDES_SWAPPED = frozenset({5, 6, 7, 8})
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def _guarded(action: Callable[[], _T]) -> _T:
    """Runs a Pillow call on untrusted bytes, and turns any exception into one of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse an image
            return action()
    except UnidentifiedImageError:
        raise InvalidInput("the image format is unknown: send a PNG, JPEG, TIFF, WebP, BMP or GIF file") from None
    except Image.DecompressionBombError:
        raise TooLarge("the image has far more pixels than allowed: send a smaller one") from None
    except MemoryError:
        raise InvalidInput("the image needs more memory than the server has: send a smaller one") from None
    except Exception as error:  # Pillow's decoders raise nearly every built-in exception on damaged files
        raise InvalidInput(f"the image is damaged or cut short ({error}): send it again") from None


def check_size(size: int, max_bytes: int) -> None:
    """Raises TooLarge for a file that is too large, before it is copied or decoded."""
    if size > max_bytes:
        raise TooLarge(f"the image has {size:,} bytes and {max_bytes:,} are allowed: send a smaller one")


class EncodedImage:
    """An image file whose header was read: its size is known, its pixels are not decoded yet."""

    def __init__(self, data: bytes | memoryview, *, max_bytes: int, max_pixels: int) -> None:
        if len(data) == 0:
            raise InvalidInput("the image is empty: send the bytes of an image file")
        check_size(len(data), max_bytes)
        self.data = data
        self._picture = _guarded(lambda: Image.open(io.BytesIO(data), formats=_FORMATS))
        width, height = self._picture.size
        if width * height > max_pixels:
            raise TooLarge(
                f"the image has {width} x {height} = {width * height:,} pixels and {max_pixels:,} are allowed: "
                "send a smaller one or tiles of it"
            )
        self._orientation = _guarded(lambda: _orientation(self._picture))
        if self._orientation in _SIDES_SWAPPED:
            width, height = height, width
        #: (width, height) as a person sees it, after EXIF rotation.
        self.size: tuple[int, int] = (width, height)

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether any JPEG decoder gives the same picture as :meth:`pixels`: no CMYK, no rotation."""
        picture = self._picture
        return picture.format == "JPEG" and picture.mode in ("RGB", "L") and self._orientation in (None, 1)

    def pixels(self) -> Image.Image:
        """The decoded picture, mode RGB, upright."""
        return _guarded(self._decode)

    def _decode(self) -> Image.Image:
        picture = to_rgb(self._picture)
        turn = _UPRIGHT.get(self._orientation or 1)
        return picture if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int | None:
    """The EXIF orientation, without decoding pixels as ``getexif`` would for a PNG."""
    if picture.format == "TIFF":
        return None  # Pillow itself rotates TIFFs, size and pixels
    if picture.format != "PNG":
        return picture.getexif().get(_EXIF_ORIENTATION)
    exif = Image.Exif()
    exif.load(picture.info.get("exif", b""))
    return exif.get(_EXIF_ORIENTATION)


def to_rgb(picture: Image.Image) -> Image.Image:
    """Any Pillow picture -> mode RGB, as a person would see it."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        picture.load()
        return picture
    if picture.mode in _DEEP_MODES:
        return Image.fromarray(_deep_to_eight_bits(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")


def _deep_to_eight_bits(values: npt.NDArray[Any]) -> RgbArray:
    """[H,W] of more than 8 bits -> [H,W] uint8.

    Cameras store 10, 12 or 14 bits in 16: white is the maximum of the smallest depth that holds the brightest pixel, so
    that such an image is not nearly black. Floats and negative values have no such depth: their range is stretched.
    """
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("it has pixels that are not finite")
    low, high = float(numbers.min()), float(numbers.max())
    if np.issubdtype(values.dtype, np.integer) and low >= 0 and high < 2**16:
        low, high = 0.0, float(2 ** max(8, int(high).bit_length()) - 1)
    spread = high - low
    if spread <= 0:
        return np.zeros(values.shape, np.uint8)
    return ((numbers - low) * (255.0 / spread) + 0.5).astype(np.uint8)


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
        image: a path; the bytes of an image file; [H,W] or [H,W,3|4] uint8, [H,W] uint16 or bool; a Pillow image.
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
        image = _picture_of(image)
    if not isinstance(image, Image.Image):
        raise InvalidInput(f"an image is a path, bytes, an array or a Pillow image, not {type(image).__name__}")
    picture = image
    return _guarded(lambda: _png_of(picture))


def _png_of(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(picture)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = to_rgb(upright)
    upright.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _picture_of(array: npt.NDArray[Any]) -> Image.Image:
    if array.size == 0:
        raise InvalidInput(f"the image array is empty (shape {array.shape})")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    grey = array.ndim == 2 and array.dtype in (np.uint8, np.uint16)
    colour = array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype == np.uint8
    if not (grey or colour):
        raise InvalidInput(
            f"an image array is [H,W] or [H,W,3|4] uint8 or [H,W] uint16, not {array.dtype} {list(array.shape)}: "
            "convert it first, for example (255 * image).astype('uint8')"
        )
    return Image.fromarray(np.ascontiguousarray(array))
