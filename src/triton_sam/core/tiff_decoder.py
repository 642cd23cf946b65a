"""Decodes the segments of a TIFF page to samples, with tifffile, or with Pillow where the compression is a picture's.

tifffile is given a page of its own making: a directory with only the tags that were checked, and the segments one by
one, decompressed here with a bound on their size. So no private tag of an untrusted file reaches its parsers.
"""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core import tiff_pages, tiff_pillow
from triton_sam.core.advice import pip_install
from triton_sam.core.tiff_pages import TiffPage
from triton_sam.errors import InvalidInput

Decompress = Callable[[bytes, int], bytes]
_COMPRESSIONS = {
    2: "CCITT RLE",
    3: "CCITT fax 3",
    4: "CCITT fax 4",
    5: "LZW",
    6: "old JPEG",
    7: "JPEG",
    34887: "LERC",
    34925: "LZMA",
    34926: "zstd",
    32773: "PackBits",
    50000: "zstd",
    50001: "WebP",
    50002: "JPEG XL",
    52546: "JPEG XL",
    33003: "JPEG 2000",
    33005: "JPEG 2000",
    34712: "JPEG 2000",
    22610: "JPEG XR",
    34934: "JPEG XR",
}
_NONE = 1
_DEFLATE = (8, 32946, 50013)
#: Decoders of imagecodecs that write no more than they are told to.
_IMAGECODECS = {5: "lzw_decode", 32773: "packbits_decode", 50000: "zstd_decode", 34926: "zstd_decode"}
#: libtiff, which is inside Pillow, decodes them with their colours: JPEG, fax, WebP.
_PICTURES = (2, 3, 4, 6, 7, 50001)
_FIX = "write it uncompressed, or with deflate"
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def by_pillow(page: TiffPage) -> bool:
    """Whether Pillow decodes the page, to RGB."""
    if page.photometric in (tiff_pages.CMYK, tiff_pages.YCBCR) or page.compression in _PICTURES:
        return True
    return page.compression in _IMAGECODECS and _imagecodecs() is None


def check_decodable(page: TiffPage) -> None:
    """InvalidInput names the compression or the layout that cannot be decoded, and the fix."""
    name = _COMPRESSIONS.get(page.compression, f"number {page.compression}")
    if page.photometric in tiff_pages.PHOTOMETRICS and page.photometric not in (tiff_pages.CMYK, tiff_pages.YCBCR):
        kind = tiff_pages.PHOTOMETRICS[page.photometric]
        raise InvalidInput(f"the TIFF has {kind}: convert it to RGB or grey first")
    if by_pillow(page):
        if not tiff_pillow.is_right(page):
            layout = f"{page.samples} channel(s) of {page.bits} bits{', planar' if page.is_planar else ''}"
            fix = _FIX if page.compression not in _IMAGECODECS else f"run {pip_install('imagecodecs')}, or {_FIX}"
            colours = tiff_pages.PHOTOMETRICS.get(page.photometric)
            what = f"{colours} with {layout}" if colours else f"{layout} with {name} compression"
            raise InvalidInput(f"the TIFF has {what}, which cannot be read here: {fix}")
        return
    if page.compression not in (_NONE, *_DEFLATE, *_IMAGECODECS):
        raise InvalidInput(f"the TIFF has the compression {name}, which cannot be read here: {_FIX}")
    if page.predictor not in (1, 2, 3):
        raise InvalidInput(f"the TIFF has the unknown predictor {page.predictor}: write it without a predictor")
    if page.predictor != 1 and page.compression == _NONE:
        raise InvalidInput(
            "the TIFF has a predictor without a compression, which programs read differently: write it again"
        )
    if page.predictor == 3 and page.kind != "f":
        raise InvalidInput("the TIFF has integers with the predictor for floats: write it without a predictor")
    if page.bits not in (8, 16, 32, 64) and (page.predictor != 1 or (page.bits != 1 and _imagecodecs() is None)):
        fix = "" if page.predictor != 1 else f"run {pip_install('imagecodecs')}, or "
        raise InvalidInput(f"the TIFF has samples of {page.bits} bits: {fix}write it with 8 or 16 bits")


def decode(page: TiffPage) -> npt.NDArray[Any]:
    """[C,H,W], as stored: not upright, palette not applied; RGB if Pillow decodes the page."""
    check_decodable(page)
    return tiff_pillow.decode(page) if by_pillow(page) else _decode_with_tifffile(page)


def _decode_with_tifffile(page: TiffPage) -> npt.NDArray[Any]:
    import tifffile

    with tifffile.TiffFile(io.BytesIO(_plain_header(page))) as file:
        decoder = file.pages.first.decode
        planes = page.samples if page.is_planar else 1
        out = np.zeros((planes, page.height, page.width, page.samples_in_segment), page.dtype)
        for index, segment in enumerate(_segments(page)):
            if segment is None:
                continue  # a segment that was never written is empty
            values, (plane, _, top, left, _), _ = decoder(segment, index)
            bottom, right = min(page.height, top + values.shape[1]), min(page.width, left + values.shape[2])
            out[plane, top:bottom, left:right] = values[0, : bottom - top, : right - left]
    return out[..., 0] if page.is_planar else np.moveaxis(out[0], 2, 0)


def _segments(page: TiffPage) -> Iterator[bytes | None]:
    """The decompressed bytes of each segment; None for one that was left out."""
    data = page.directory.source.data
    decompress = _decompressor(page.compression)
    size = page.segment_bytes
    for offset, count in zip(page.offsets.tolist(), page.counts.tolist(), strict=True):
        if count == 0:
            yield None
            continue
        if offset < 0 or offset + min(count, size if decompress is None else count) > len(data):
            raise ValueError("a strip or tile lies outside the file")
        segment = bytes(data[offset : offset + (min(count, size) if decompress is None else count)])
        if page.fill_order == 2:
            segment = segment.translate(_REVERSED_BITS)
        yield segment if decompress is None else decompress(segment, size)


def _decompressor(compression: int) -> Decompress | None:
    if compression == _NONE:
        return None
    if compression in _DEFLATE:
        return _inflate
    codec = getattr(_imagecodecs(), _IMAGECODECS[compression])
    return partial(_bounded, codec)


def _inflate(data: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(data, size)


def _bounded(codec: Callable[..., bytes], data: bytes, size: int) -> bytes:
    return codec(data, out=size)


def _imagecodecs() -> Any | None:
    try:
        return importlib.import_module("imagecodecs")
    except ImportError:
        return None


def _plain_header(page: TiffPage) -> bytes:
    """A TIFF without pixels, whose page has the layout of this one after decompression."""
    segments = len(page.offsets)
    tags = {
        256: page.width,
        257: page.height,
        258: page.bits,
        259: _NONE,
        262: tiff_pages.BLACK_IS_ZERO,
        273: 8,
        277: page.samples,
        278: page.segment_height,
        279: page.segment_bytes,
        284: 2 if page.is_planar else 1,
        317: page.predictor,
        339: {"u": 1, "i": 2, "f": 3}[page.kind],
    }
    lists = (273, 279)
    if page.is_tiled:
        tags |= {322: page.segment_width, 323: page.segment_height, 324: tags.pop(273), 325: tags.pop(279)}
        del tags[278]
        lists = (324, 325)
    order = page.directory.source.order
    end = 8 + 2 + 12 * len(tags) + 4
    entries, tail = [], b""
    for tag, value in sorted(tags.items()):
        if tag in lists and segments > 1:
            entries.append(struct.pack(order + "HHII", tag, 4, segments, end + len(tail)))
            tail += struct.pack(order + "I", min(value, 2**32 - 1)) * segments
        else:
            entries.append(struct.pack(order + "HHII", tag, 4, 1, min(value, 2**32 - 1)))
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return start + struct.pack(order + "H", len(entries)) + b"".join(entries) + bytes(4) + tail
