"""Image files that claim to be far larger than they are, or unpack to far more."""

from __future__ import annotations

import functools
import io
import struct
import zlib

from PIL import Image

SIDE = 60_000


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_head(width: int, height: int, bits: int = 8, colours: int = 2) -> bytes:
    """A PNG's signature and header."""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0))


@functools.cache
def zeros(length: int) -> bytes:
    """``length`` zero bytes compressed by zlib, to about a thousandth."""
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    parts = [packer.compress(block[: min(len(block), length - at)]) for at in range(0, length, len(block))]
    return b"".join([*parts, packer.flush()])


@functools.cache
def whole_png() -> bytes:
    """A complete PNG of 60,000 x 60,000 pixels of one bit: 450 MB in 2 MB."""
    return png_head(SIDE, SIDE, 1, 0) + chunk(b"IDAT", zeros(SIDE * (SIDE // 8 + 1))) + chunk(b"IEND", b"")


def overfull_png() -> bytes:
    """A PNG of 64 x 64 by its header, with 200 MB of data."""
    return png_head(64, 64) + chunk(b"IDAT", zeros(200_000_000)) + chunk(b"IEND", b"")


def png_of_text() -> bytes:
    """A PNG of 64 x 64, with a compressed comment of 200 MB."""
    comment = chunk(b"zTXt", b"Comment\0\0" + zeros(200_000_000))
    return png_head(64, 64) + comment + chunk(b"IDAT", zeros(64 * 193)) + chunk(b"IEND", b"")


def tiff(width: int, height: int) -> bytes:
    """A TIFF whose only strip is missing."""
    entries = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8)]
    entries += [(277, 3, 1), (278, 4, height), (279, 4, 0xFFFFFFFF)]
    body = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + body + bytes(4)


def jpeg(width: int, height: int) -> bytes:
    """A small JPEG whose header was changed."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def bmp(width: int, height: int) -> bytes:
    return struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def gif(width: int, height: int) -> bytes:
    head = struct.pack("<6sHHBBB", b"GIF89a", width, height, 0xF0, 0, 0) + bytes(6)
    return head + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\x00;"


def ppm(width: int, height: int) -> bytes:
    return b"P6 %d %d 255\n" % (width, height)


def heads() -> dict[str, bytes]:
    """Small files whose headers claim too many pixels, or none."""
    return {
        "PNG head": png_head(SIDE, SIDE),
        "PNG head of 2^31": png_head(2**31 - 1, 2**31 - 1),
        "TIFF": tiff(SIDE, SIDE),
        "TIFF of 2^32": tiff(2**32 - 1, 2**32 - 1),
        "JPEG": jpeg(SIDE, SIDE),
        "BMP": bmp(SIDE, SIDE),
        "BMP of 2^31": bmp(2**31 - 1, -(2**31)),
        "GIF": gif(SIDE, SIDE),
        "PPM": ppm(SIDE, SIDE),
        "PPM of many digits": ppm(10**30, 10**30),
        "PPM of a negative size": ppm(-5, 5),
        "PNG of 0 x 0": png_head(0, 0) + chunk(b"IDAT", zeros(10)),
        "nothing": b"",
        "a signature": b"\x89PNG\r\n\x1a\n",
        "zeros": bytes(1000),
        "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='60000' height='60000'/>",
    }


def too_many_pixels() -> dict[str, bytes]:
    """The same, and one that has all the pixels that its header claims."""
    return heads() | {"PNG": whole_png()}


def damaged() -> dict[str, bytes]:
    """Files with an acceptable header and missing or wrong data."""
    return {
        "PNG of no data": png_head(9000, 9000),
        "PNG with a packed comment of 200 MB": png_of_text(),
        "TIFF of no data": tiff(9000, 9000),
        "JPEG of little data": jpeg(9000, 9000)[:300],
        "BMP of no data": bmp(9000, 9000),
        "GIF of little data": gif(9000, 9000)[:40],
        "PPM of no data": ppm(9000, 9000),
        "an EPS that computes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n",
    }
