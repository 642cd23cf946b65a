"""Image files that Pillow reads: PNG, JPEG, WebP, BMP, GIF, PPM, JPEG 2000; of an animation, the first frame."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from triton_sam.core.deep_colour import colour_depth, deep_samples
from triton_sam.core.deep_pixels import eight_bits
from triton_sam.core.file_kinds import refuse_known_kinds
from triton_sam.core.picture_samples import Samples
from triton_sam.core.untrusted import check_pixels

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
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "JPEG2000")
_SIDES_SWAPPED = frozenset({5, 6, 7, 8})
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class PillowPicture:
    """A file whose header was read; its pixels are decoded when they are asked for."""

    def __init__(self, data: bytes | memoryview, max_pixels: int) -> None:
        refuse_known_kinds(data)
        self._data = data
        self._picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        width, height = self._picture.size
        check_pixels(width, height, max_pixels)
        self._orientation = _orientation(self._picture)
        if self._orientation in _SIDES_SWAPPED:
            width, height = height, width
        #: (width, height), upright.
        self.size: tuple[int, int] = (width, height)
        #: Of each sample.
        self.bits = colour_depth(self._picture, data)

    @property
    def format(self) -> str:
        return str(self._picture.format)

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether any JPEG decoder gives the same picture: no CMYK, no rotation."""
        picture = self._picture
        return picture.format == "JPEG" and picture.mode in ("RGB", "L") and self._orientation in (None, 1)

    @property
    def channels(self) -> int:
        """Of :meth:`samples`."""
        if self._picture.mode in (*_DEEP_MODES, "L", "1"):
            return 1
        return 4 if self._is_transparent else 3

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of :meth:`samples`."""
        mode = self._picture.mode
        if mode in _DEEP_MODES:
            return np.dtype({"F": np.float32, "I": np.int32}.get(mode, np.uint16))
        return np.dtype(np.uint16 if self.bits > 8 else np.uint8)

    def pixels(self) -> Image.Image:
        """The picture, mode RGB, upright, transparency on white."""
        if self.bits > 8:
            return self.samples().rgb()
        return self._upright(to_rgb(self._picture))

    def samples(self) -> Samples:
        """[1|3|4,H,W], upright: grey, RGB or RGBA of the file's own depth."""
        picture = self._picture
        if self.bits > 8:
            values = deep_samples(picture, self._data)
            turned = np.stack([np.asarray(self._upright(Image.fromarray(np.ascontiguousarray(v)))) for v in values])
            return Samples(turned, colours=3, alpha="straight" if len(turned) == 4 else None)
        if picture.mode in _DEEP_MODES or picture.mode == "L":
            return Samples(np.asarray(self._upright(picture))[None], colours=1)
        if picture.mode == "1":
            return Samples(np.asarray(self._upright(picture.convert("L")))[None], colours=1)
        rgb = self._upright(picture.convert("RGBA" if self._is_transparent else "RGB"))
        values = np.moveaxis(np.asarray(rgb), 2, 0)
        return Samples(values, colours=3, alpha="straight" if len(values) == 4 else None)

    @property
    def _is_transparent(self) -> bool:
        return self._picture.mode in ("RGBA", "LA", "PA") or "transparency" in self._picture.info

    def _upright(self, picture: Image.Image) -> Image.Image:
        turn = _UPRIGHT.get(self._orientation or 1)
        return picture if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int | None:
    """The EXIF orientation, without decoding pixels as ``getexif`` would for a PNG."""
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
        return Image.fromarray(eight_bits(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")
