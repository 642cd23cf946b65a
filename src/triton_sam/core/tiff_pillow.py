"""Decodes a TIFF page with Pillow, whose libtiff knows the compressions and colours of pictures: JPEG, fax, CMYK.

Pillow is given a file of this page alone, with only the tags that matter for pixels.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core import tiff_pages
from triton_sam.core.tiff_directories import TYPE_SIZES, Directory
from triton_sam.core.tiff_pages import TiffPage
from triton_sam.errors import InvalidInput

_OLD_JPEG = 6
#: Tags that change what libtiff decodes; all others stay behind.
_TAGS = (
    *(256, 257, 258, 259, 262, 266, 277, 278, 284, 292, 293, 317, 320, 322, 323, 332, 338, 339, 347),
    *(529, 530, 531, 532),
)
_LONG, _LONG8 = 4, (16, 17, 18)
_HEADER_BYTES = 8
_MAX_BODY = 2**31


def is_right(page: TiffPage) -> bool:
    """Layouts that were compared: whole pixels of 8 bits, 1 bit grey, 16 bits grey."""
    grey = page.photometric in (tiff_pages.WHITE_IS_ZERO, tiff_pages.BLACK_IS_ZERO, tiff_pages.PALETTE)
    if page.kind != "u" or page.is_planar:
        return False
    if page.bits == 8:
        if page.samples == 4 and page.photometric == tiff_pages.RGB:
            return page.extra_samples in ((0,), (tiff_pages.UNASSOCIATED_ALPHA,))
        samples = {tiff_pages.CMYK: 4, tiff_pages.YCBCR: 3, tiff_pages.RGB: 3}.get(page.photometric)
        return page.samples == (1 if grey else samples)
    one_channel = page.samples == 1 and page.photometric in (tiff_pages.WHITE_IS_ZERO, tiff_pages.BLACK_IS_ZERO)
    return one_channel and (page.bits == 1 or (page.bits == 16 and page.photometric == tiff_pages.BLACK_IS_ZERO))


def decode(page: TiffPage) -> npt.NDArray[Any]:
    """[1|3|4,H,W], without the orientation; MinIsWhite stays as stored."""
    file = _file_of(page)
    with Image.open(io.BytesIO(file), formats=("TIFF",)) as picture:
        if picture.size != (page.width, page.height):
            raise ValueError("the TIFF contradicts itself about its size")
        if picture.mode in ("CMYK", "YCbCr"):
            picture = picture.convert("RGB")
        elif picture.mode == "1":
            picture = picture.convert("L")
        values = np.asarray(picture)
    if page.photometric == tiff_pages.WHITE_IS_ZERO:
        values = 255 - values
    if page.bits == 1:
        values = values // 255
    return values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0)


def _file_of(page: TiffPage) -> bytes:
    """A TIFF of this page alone, with the tags that matter for its pixels; no orientation.

    Never a BigTIFF, because Pillow knows only one of its byte orders.
    """
    source = page.directory.source
    if page.compression == _OLD_JPEG:
        return bytes(source.data)
    if int(page.counts.astype(np.uint64).sum()) > 2 * len(source.data):
        raise ValueError("strips or tiles overlap")
    order = source.order
    segments = [bytes(source.data[offset : offset + count]) for offset, count in _places(page)]
    body = b"".join(segments)
    if len(body) >= _MAX_BODY:
        raise InvalidInput("the TIFF has more than 2 GB of compressed pixels: write it uncompressed, or with deflate")
    body += bytes(len(body) % 2)
    sizes = [len(segment) for segment in segments]
    places = np.cumsum([_HEADER_BYTES, *sizes])[:-1]
    lists = (324, 325) if page.is_tiled else (273, 279)
    values = {
        lists[0]: (_LONG, places.astype(order + "u4").tobytes()),
        lists[1]: (_LONG, np.array(sizes, order + "u4").tobytes()),
    }
    for tag in _TAGS:
        raw = page.directory.raw(tag, 2**20)
        if raw is not None:
            values[tag] = _classic(page.directory, tag, raw)
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, _HEADER_BYTES + len(body))
    return start + body + _directory(values, order, _HEADER_BYTES + len(body))


def _places(page: TiffPage) -> Iterator[tuple[int, int]]:
    for offset, count in zip(page.offsets.tolist(), page.counts.tolist(), strict=True):
        if offset < 0 or offset + count > len(page.directory.source.data):
            raise ValueError("a strip or tile lies outside the file")
        yield offset, count


def _classic(directory: Directory, tag: int, raw: bytes) -> tuple[int, bytes]:
    """(type, value) of a tag, without the 64-bit types of BigTIFF."""
    kind = directory.entries[tag].kind
    if kind not in _LONG8:
        return kind, raw
    numbers = np.frombuffer(raw, directory.source.order + "u8")
    return _LONG, numbers.astype(directory.source.order + "u4").tobytes()


def _directory(values: dict[int, tuple[int, bytes]], order: str, position: int) -> bytes:
    """A directory that lies at this position, and after it the values that are too long for it."""
    end = position + 2 + 12 * len(values) + 4
    entries, tail = b"", b""
    for tag, (kind, raw) in sorted(values.items()):
        count = len(raw) // TYPE_SIZES[kind]
        field = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack(order + "I", end + len(tail))
        entries += struct.pack(order + "HHI", tag, kind, count) + field
        tail += raw + bytes(len(raw) % 2) if len(raw) > 4 else b""
    return struct.pack(order + "H", len(values)) + entries + bytes(4) + tail
