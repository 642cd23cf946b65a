"""Colours of more than 8 bits outside of TIFF: PNG, PPM and JPEG 2000, which Pillow alone would darken."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.unit.core.image_helpers import EXIF_ORIENTATION, Pixels, decoded, noise, open_image, saved
from triton_sam.errors import InvalidInput

_COLOUR_TYPES = {2: 4, 3: 2, 4: 6}
CAMERA = np.random.default_rng(4).integers(0, 4096, (20, 30, 3), dtype=np.uint16)


def png(values: Pixels, extra: bytes = b"") -> bytes:
    """[H,W,C] uint16 as a PNG without filters, written by hand."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    content = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def ppm(values: Pixels, top: int) -> bytes:
    height, width, _ = values.shape
    return b"P6\n%d %d\n%d\n" % (width, height, top) + values.astype(">u2").tobytes()


def test_twelve_bits_in_a_png() -> None:
    assert np.abs(decoded(png(CAMERA)) - CAMERA * (255 / 4095)).max() <= 0.5


def test_all_bits_in_a_png() -> None:
    values = CAMERA * np.uint16(16)
    assert np.abs(decoded(png(values)) - values / 257).max() <= 0.5


def test_transparency_in_a_png() -> None:
    alpha = np.where(CAMERA[:, :, :1] > 2000, 65535, 0).astype(np.uint16)
    found = decoded(png(np.dstack([CAMERA * np.uint16(16), alpha])))
    clear = alpha[:, :, 0] == 0
    assert np.unique(found[clear]).tolist() == [255]
    assert np.abs(found[~clear] - CAMERA[~clear] * 16 / 257).max() <= 1


def test_grey_and_transparency_in_a_png() -> None:
    alpha = np.full((20, 30, 1), 4095, np.uint16)
    found = decoded(png(np.dstack([CAMERA[:, :, :1], alpha])))
    assert np.abs(found - CAMERA[:, :, :1] * (255 / 4095)).max() <= 1


def test_the_rotation_of_a_deep_png() -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body)) + b"eXIf" + body + struct.pack(">I", zlib.crc32(b"eXIf" + body))
    stored = np.rot90(CAMERA, 1)
    data = png(stored, chunk)
    assert open_image(data).size == (30, 20)
    assert np.abs(decoded(data) - CAMERA * (255 / 4095)).max() <= 0.5


@pytest.mark.parametrize("top", [4095, 65535])
def test_ppm(top: int) -> None:
    assert np.abs(decoded(ppm(CAMERA, top)) - CAMERA * (255 / 4095)).max() <= 1


def test_a_ppm_that_is_cut_short() -> None:
    with pytest.raises(InvalidInput, match="damaged"):
        open_image(ppm(CAMERA, 65535)[:-100]).pixels()


def test_jpeg_2000() -> None:
    codecs = pytest.importorskip("imagecodecs")
    large = np.kron(CAMERA[:8, :8], np.ones((16, 16, 1), np.uint16))
    found = decoded(codecs.jpeg2k_encode(large, reversible=True, level=0))
    assert np.abs(found - large * (255 / 4095)).max() <= 1


@pytest.mark.parametrize("brightest", [4095, 65535])
def test_without_opencv_and_imagecodecs(brightest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Pillow keeps is enough for all 16 bits; less is refused, and not shown nearly black."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    data = png(CAMERA * np.uint16(16 if brightest == 65535 else 1))
    if brightest == 4095:
        with pytest.raises(InvalidInput, match="opencv"):
            open_image(data).pixels()
    else:
        assert np.abs(decoded(data) - CAMERA * 16 / 257.0).max() <= 1


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if form == "WEBP" else {}
    data = saved(frames[0], form, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as check:
        assert getattr(check, "n_frames", 1) == 3
    assert np.unique(decoded(data).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]


@pytest.mark.parametrize("rows", ["upwards", "downwards"])
def test_bmp_with_rows_in_both_directions(rows: str) -> None:
    upright = noise(6, 8)
    data = bytearray(saved(Image.fromarray(upright), "BMP"))
    if rows == "downwards":
        data[22:26] = struct.pack("<i", -6)
        upright = upright[::-1]
    np.testing.assert_array_equal(decoded(bytes(data)), upright)
