"""The test image, as any number of different files."""

from __future__ import annotations

import io
import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from triton_sam.core.images import to_rgb
from triton_sam.core.samples import sample_photograph
from triton_sam.errors import InvalidInput, SetupError

SIDE = 1024
_QUALITY = 92
_DIGITS = 12
#: Of boxes, as a fraction of the image's sides.
_BOX_SIDE = 0.2
#: A point on an object of the sample photograph, as fractions of width and height.
_POINT = (0.6055, 0.7227)
_START_OF_IMAGE = b"\xff\xd8"
_COMMENT = b"\xff\xfe"


class Pictures:
    """One photograph as a JPEG; files with different numbers are different images to a server.

    Only a comment differs, so that they cost the same, and no image is compressed again.
    """

    def __init__(self, image: Path | None = None, side: int = SIDE) -> None:
        """
        Args:
            image: a file, sent unchanged if it is a JPEG; None for the sample photograph, ``side`` x ``side`` px.
        """
        if image is None:
            picture, source = _sample(side)
        else:
            try:
                data = image.read_bytes()
                with Image.open(io.BytesIO(data)) as opened:
                    is_jpeg, picture = opened.format == "JPEG", to_rgb(opened).copy()
            except UnidentifiedImageError:  # its own message names a Python object
                raise InvalidInput(f"the image {image} has an unknown format: give a PNG or JPEG file") from None
            except OSError as error:
                raise InvalidInput(f"cannot read the image {image}: {error}") from None
            source = image.name
        if image is None or not is_jpeg:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=_QUALITY)
            data = buffer.getvalue()
        self.picture = picture
        self.width, self.height = picture.size
        self._data = data
        self.size = f"{self.width} x {self.height} px"
        self.about = f"{source}, {self.size}, JPEG of {len(data) / 1e3:.0f} kB"

    def jpeg(self, number: int = 0) -> bytes:
        """The file with this number."""
        text = f"image {number:0{_DIGITS}d}".encode()
        segment = _COMMENT + (len(text) + 2).to_bytes(2, "big") + text
        return self._data[:2] + segment + self._data[2:]

    def point(self, number: int = 0) -> tuple[float, float]:
        """A click, xy in original pixels; each number gives another point inside the image."""
        x, y = _POINT
        return ((x + 0.381966 * number) % 1 * (self.width - 1), (y + 0.618034 * number) % 1 * (self.height - 1))

    def boxes(self, count: int) -> list[list[float]]:
        """[count,4] x0, y0, x1, y1 in original pixels, of a fifth of each side, spread over the image."""
        half = _BOX_SIDE / 2
        found = []
        for number in range(count):
            x, y = self.point(number)
            x = min(max(x, half * self.width), (1 - half) * self.width)
            y = min(max(y, half * self.height), (1 - half) * self.height)
            found.append([x - half * self.width, y - half * self.height, x + half * self.width, y + half * self.height])
        return found


def fresh_numbers() -> Iterator[int]:
    """Rising numbers that no other run has used: a running server may have cached the images of earlier runs."""
    return itertools.count(secrets.randbelow(10 ** (_DIGITS - 1)))


def number_at(data: bytes) -> slice:
    """The position of the number in a file of :meth:`Pictures.jpeg`, so that a copy can be renumbered in place."""
    end = len(_START_OF_IMAGE) + len(_COMMENT) + 2 + len("image ") + _DIGITS
    return slice(end - _DIGITS, end)


def _sample(side: int) -> tuple[Image.Image, str]:
    try:
        path = sample_photograph()
    except SetupError:  # without scikit-image: noise that compresses like a photograph
        coarse = np.random.default_rng(0).integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), "coloured noise"
    with Image.open(path) as opened:
        return opened.convert("RGB").resize((side, side), Image.Resampling.LANCZOS), path.name
