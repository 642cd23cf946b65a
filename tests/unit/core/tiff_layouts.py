"""Random TIFF layouts, written by tifffile, with the picture that a person should see."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import tifffile
from hypothesis import strategies as st

from tests.unit.core.image_helpers import Pixels

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
COMPRESSIONS = (None, "deflate", "lzw", "packbits", "zstd")


@dataclass(frozen=True)
class Layout:
    """A file, its samples and how tifffile was told to write them."""

    data: bytes
    values: Pixels
    """[C,H,W], as stored."""
    photometric: str
    options: dict[str, Any]
    orientation: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Grey, RGB, RGBA or plain channels of every dtype; strips, tiles, compressions, byte orders and orientations."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    photometric = draw(st.sampled_from(("minisblack", "miniswhite", "rgb")))
    channels = draw(st.sampled_from((3, 4) if photometric == "rgb" else (1, 1, 1, 2, 3, 4, 6)))
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    values = _samples(draw, dtype, (channels, height, width))
    planar = channels > 1 and draw(st.booleans())
    options: dict[str, Any] = {
        "photometric": photometric,
        "bigtiff": draw(st.booleans()),
        "byteorder": draw(st.sampled_from("<>")),
        "compression": draw(st.sampled_from(COMPRESSIONS)),
    }
    if channels > 1:
        options["planarconfig"] = "separate" if planar else "contig"
    if channels == 4 and photometric == "rgb":
        options["extrasamples"] = [draw(st.sampled_from(("unspecified", "unassalpha", "assocalpha")))]
    if options["compression"] not in (None, "packbits") and dtype.itemsize > (1 if dtype.kind == "f" else 0):
        options["predictor"] = draw(st.booleans()) and dtype.itemsize < 8
    if draw(st.booleans()):
        options["tile"] = (draw(st.sampled_from((16, 32))), draw(st.sampled_from((16, 48))))
    else:
        options["rowsperstrip"] = draw(st.integers(1, height))
    orientation = draw(st.integers(1, 8))
    buffer = io.BytesIO()
    stored = values if planar else values[0] if channels == 1 else np.moveaxis(values, 0, 2)
    tags = [(274, "H", 1, orientation, False)]
    tifffile.imwrite(buffer, stored, metadata=None, extratags=tags, **options)
    return Layout(buffer.getvalue(), values, photometric, options, orientation)


def _samples(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Pixels:
    """Random samples of a random range: all of the type, a camera's 12 bits, 0 to 1, or around zero."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        scale, shift = draw(st.sampled_from(((1, 0), (255, 0), (1000, -300), (0.001, 0), (0.5, 0.2))))
        return (random.random(shape) * scale + shift).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = draw(st.sampled_from(((int(limits.min), int(limits.max)), (0, 4095), (0, 60), (0, 65535), (5, 5))))
    return random.integers(max(low, limits.min), min(high, limits.max), shape, dtype=dtype, endpoint=True)
