"""Colour images of more than 8 bits that are no TIFF: PNG, JPEG 2000 and PPM.

Pillow keeps only the upper 8 of 16 bits of their colours, so a camera's 12 bits in 16 would be nearly black. They are
read by OpenCV, which the server has, or by imagecodecs.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from triton_sam.core.advice import pip_install
from triton_sam.errors import InvalidInput

_START_OF_CODESTREAM = b"\xff\x4f\xff\x51"
#: From the start of a JPEG 2000 codestream to the depth of its first component.
_DEPTH_AT = 42
_IMAGECODECS = {"PNG": "png_decode", "JPEG2000": "jpeg2k_decode"}


def colour_depth(picture: Image.Image, data: bytes | memoryview) -> int:
    """Bits of each sample that Pillow would lose; 8 for all other images. Nothing is decoded."""
    if picture.mode not in ("RGB", "RGBA", "LA") or not isinstance(picture, ImageFile.ImageFile) or not picture.tile:
        return 8
    arguments = picture.tile[0][3]
    if picture.format == "PNG":
        return 16 if isinstance(arguments, str) and arguments.endswith(";16B") else 8
    if picture.format == "PPM":
        return 16 if _maximum(arguments) > 255 else 8
    if picture.format == "JPEG2000":
        start = bytes(data[: 2**16]).find(_START_OF_CODESTREAM)
        if 0 <= start < len(data) - _DEPTH_AT:
            return max(8, (data[start + _DEPTH_AT] & 0x7F) + 1)
    return 8


def deep_samples(picture: Image.Image, data: bytes | memoryview) -> npt.NDArray[Any]:
    """[3|4,H,W] uint16 of an image with a colour depth above 8."""
    if picture.format == "PPM":
        return _ppm_samples(picture, data)
    values = _decoded(str(picture.format), data)
    if values is None:
        return _upper_bits(picture)
    if values.ndim != 3 or values.shape[2] not in (3, 4) or values.shape[:2] != picture.size[::-1]:
        raise ValueError("two decoders disagree about its size or its channels")
    return np.moveaxis(values, 2, 0)


def _decoded(form: str, data: bytes | memoryview) -> npt.NDArray[Any] | None:
    """[H,W,3|4], RGB; None if no decoder is installed."""
    try:
        import cv2
    except ImportError:
        try:
            decode = getattr(importlib.import_module("imagecodecs"), _IMAGECODECS[form])
        except ImportError:
            return None
        values: npt.NDArray[Any] = decode(bytes(data))
        return np.concatenate([values[..., :1]] * 3 + [values[..., 1:]], axis=2) if values.shape[-1] == 2 else values
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if found is None:
        raise ValueError("its pixels cannot be decoded")
    order = [2, 1, 0, 3][: found.shape[2]] if found.ndim == 3 else []
    ordered: npt.NDArray[Any] = found[..., order] if order else found
    return ordered


def _upper_bits(picture: Image.Image) -> npt.NDArray[Any]:
    """What Pillow keeps, if it is all that matters."""
    values = np.asarray(picture.convert("RGBA" if picture.mode in ("LA", "RGBA") else "RGB"))
    if values[..., :3].max() < 128:
        raise InvalidInput(
            "the image has colours of 16 bits and uses less than half of them, which Pillow cannot read: "
            f"run {pip_install('opencv-python-headless')}, or send 8 bits"
        )
    return np.moveaxis(values, 2, 0).astype(np.uint16) * np.uint16(257)


def _maximum(arguments: Any) -> int:
    """The largest value of a PPM, from the arguments of Pillow's decoder."""
    return int(arguments[-1]) if isinstance(arguments, tuple) else 255


def _ppm_samples(picture: Image.Image, data: bytes | memoryview) -> npt.NDArray[Any]:
    """Samples of 0 to 65535, whatever maximum the file's header has."""
    assert isinstance(picture, ImageFile.ImageFile)
    tile = picture.tile[0]
    width, height = picture.size
    start, top = int(tile[2]), _maximum(tile[3])
    if bytes(data[:2]) != b"P6":  # text instead of bytes
        values = np.asarray(picture).astype(np.uint16) * np.uint16(257)
        return np.moveaxis(values, 2, 0)
    values = np.frombuffer(data, ">u2", width * height * 3, start).reshape(height, width, 3)
    scaled = np.minimum(values, top).astype(np.uint32) * 65535 // top if top < 65535 else values
    return np.moveaxis(scaled.astype(np.uint16), 2, 0)
