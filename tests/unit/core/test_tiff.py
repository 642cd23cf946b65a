"""TIFF files: what was misread, what is refused by name, and what worked with Pillow alone."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.unit.core.image_helpers import Pixels, blocks, decoded, noise, open_image, saved
from triton_sam.errors import InvalidInput

RANDOM = np.random.default_rng(17)


def tiff(values: Pixels, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def deep(*shape: int, top: int = 65535) -> Pixels:
    return RANDOM.integers(0, top + 1, shape, dtype=np.uint16)


def packed(values: Pixels, bits: int, order: str) -> bytes:
    """[H,W] as a TIFF of samples without gaps, written by hand: tifffile swaps some of them in big-endian files."""
    height, width = values.shape
    places = np.arange(bits)[::-1]
    rows = np.packbits((values[:, :, None] >> places & 1).astype(np.uint8).reshape(height, -1), axis=1).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(rows)}
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8 + len(rows))
    return head + rows + struct.pack(order + "H", len(tags)) + entries + bytes(4)


def grey(values: Pixels) -> Pixels:
    return np.repeat(values[:, :, None], 3, axis=2)


def refused(data: bytes) -> str:
    """The sentence of the refusal, which comes before any pixel is decoded."""
    with pytest.raises(InvalidInput) as caught:
        open_image(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What was misread


def test_planar_sixteen_bit_colours() -> None:
    """The default of tifffile.imwrite for such an array; Pillow decodes it as noise."""
    values = deep(3, 40, 50)
    data = tiff(values, photometric="rgb", planarconfig="separate")
    found = decoded(data)
    assert np.abs(found - np.moveaxis(values, 0, 2) / 257).max() <= 0.5


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_the_depth_of_colours_is_that_of_the_brightest_of_all_channels(planar: str) -> None:
    values = deep(40, 50, 3, top=4095)
    values[:, :, 0] //= 64
    values[0, 0, 1] = 4095
    stored = values if planar == "contig" else np.moveaxis(values, 2, 0)
    found = decoded(tiff(stored, photometric="rgb", planarconfig=planar))
    assert np.abs(found - values * (255 / 4095)).max() <= 0.5


def test_sixteen_bit_greys_where_white_is_zero() -> None:
    values = deep(20, 30, top=4095)
    found = decoded(tiff(values, photometric="miniswhite"))
    assert np.abs(found[:, :, 0] - (255 - values * (255 / 4095))).max() <= 1


def test_sixteen_bit_transparency_lies_on_white() -> None:
    values = np.zeros((1, 3, 4), np.uint16)
    values[..., :3] = 20_000
    values[0, :, 3] = 0, 32768, 65535
    values[0, 0, 0] = 65535  # the brightest: the depth is 16 bits
    found = decoded(tiff(values, photometric="rgb", extrasamples=["unassalpha"]))[0, :, 1]
    front = 20_000 / 257
    np.testing.assert_allclose(found, [255, front / 2 + 127.5, front], atol=1)


def test_colours_multiplied_by_their_transparency() -> None:
    values = np.zeros((1, 2, 4), np.uint8)
    values[0] = [[100, 50, 0, 128], [200, 100, 0, 255]]
    found = decoded(tiff(values, photometric="rgb", extrasamples=["assocalpha"]))[0]
    np.testing.assert_allclose(found, [[227, 177, 127], [200, 100, 0]], atol=1)


@pytest.mark.parametrize("bits", [1, 2, 4, 6, 10, 12, 14])
@pytest.mark.parametrize("order", ["<", ">"])
def test_packed_bits(bits: int, order: str) -> None:
    pytest.importorskip("imagecodecs")
    top = 2**bits - 1
    values = RANDOM.integers(0, top, (20, 31), endpoint=True).astype(np.uint8 if bits <= 8 else np.uint16)
    values[0, 0] = top
    found = decoded(packed(values, bits, order))
    assert np.abs(found[:, :, 0] - values * (255 / top)).max() <= 0.5


# What is refused by name


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (noise(20, 30)[:, :, :2], {"photometric": "minisblack", "planarconfig": "contig"}, "2 channels"),
        (deep(20, 30, 2), {"photometric": "minisblack", "planarconfig": "contig"}, "2 channels"),
        (deep(2, 20, 30), {"photometric": "minisblack", "planarconfig": "separate"}, "2 channels"),
        (deep(2, 20, 30), {"metadata": {"axes": "CYX"}, "ome": True}, "2 channels, one per page"),
        (deep(2, 20, 30), {"metadata": {"axes": "CYX"}, "imagej": True}, "2 channels, one per page"),
        (deep(3, 20, 30), {"photometric": "minisblack", "planarconfig": "separate"}, "3 channels"),
        (deep(20, 30, 5), {"photometric": "minisblack", "planarconfig": "contig"}, "5 channels"),
        (deep(20, 30, 3), {"photometric": "cielab"}, "L.a.b"),
        (deep(20, 30, 4), {"photometric": "separated"}, "CMYK"),
        (deep(20, 30), {"photometric": "cfa"}, "raw"),
        (np.zeros((20, 30), np.complex64), {}, "complex"),
        (deep(20, 30), {"compression": "lerc"}, "LERC"),
        (np.moveaxis(noise(20, 30), 2, 0), {"photometric": "rgb", "compression": "jpeg"}, "planar with JPEG"),
        (deep(4, 16, 16, 16), {"volumetric": True, "tile": (16, 16, 16), "photometric": "minisblack"}, "volume"),
    ],
)
def test_what_is_not_understood_is_named(values: Pixels, options: dict[str, Any], words: str) -> None:
    sentence = refused(tiff(values, **options))
    assert words.replace(".", "*") in sentence
    assert ": " in sentence, "the fix"


def test_a_raw_file_is_not_its_preview() -> None:
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(noise(20, 30), photometric="rgb", subfiletype=1, subifds=1)
        writer.write(deep(200, 300), photometric="cfa")
    assert "raw file" in refused(buffer.getvalue())


def test_the_fix_for_several_channels_names_all_ways() -> None:
    sentence = refused(tiff(deep(20, 30, 2), photometric="minisblack", planarconfig="contig"))
    assert "--channel" in sentence
    assert "channel=0" in sentence


@pytest.mark.parametrize("name", ["lzw", "packbits", "zstd"])
def test_without_imagecodecs_the_compression_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    data = tiff(deep(3, 20, 30), photometric="rgb", planarconfig="separate", compression=name)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    sentence = refused(data)
    assert name in sentence.lower()
    assert "pip install imagecodecs" in sentence


@pytest.mark.parametrize("name", ["lzw", "packbits"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (noise(20, 30), {"photometric": "rgb"}),
        (noise(20, 30)[:, :, 0], {}),
        (noise(20, 30)[:, :, 0], {"photometric": "miniswhite"}),
        (np.dstack([noise(20, 30), np.full((20, 30), 255, np.uint8)]), {"photometric": "rgb"}),
        (deep(20, 30), {}),
    ],
    ids=["RGB", "grey", "white is zero", "RGBA", "16 bits"],
)
def test_without_imagecodecs_pillow_reads_what_it_reads_right(
    name: str, order: str, values: Pixels, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imagecodecs")
    compressed = tiff(values, compression=name, byteorder=order, **options)
    expected = decoded(tiff(values, **options))
    np.testing.assert_array_equal(decoded(compressed), expected)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    np.testing.assert_array_equal(decoded(compressed), expected)


# What worked with Pillow alone


def _palette() -> Image.Image:
    return Image.fromarray(blocks(3, 4, 5)).quantize(64, dither=Image.Dither.NONE)


def _several_pages() -> bytes:
    first, second = noise(20, 30), noise(20, 30)[::-1]
    return saved(Image.fromarray(first), "TIFF", save_all=True, append_images=[Image.fromarray(second)])


def _rgba() -> Pixels:
    alpha = np.where(noise(20, 30)[:, :, :1] > 99, 255, 0).astype(np.uint8)
    return np.dstack([noise(20, 30), alpha])


def _on_white(rgba: Pixels) -> Pixels:
    return np.where(rgba[:, :, 3:] == 0, 255, rgba[:, :, :3])


_RAMP = np.linspace(0, 4095, 600).astype(np.uint16).reshape(20, 30)
_FLOATS = np.linspace(-3, 12, 600, dtype=np.float32).reshape(20, 30)
_MASK = noise(20, 30)[:, :, 0] > 127
_FAX = Image.fromarray(_MASK)

#: name -> (file, pixels, tolerance).
WORKED: dict[str, Callable[[], tuple[bytes, Pixels, float]]] = {
    "RGB": lambda: (saved(Image.fromarray(noise(20, 30)), "TIFF"), noise(20, 30), 0),
    "LZW RGB": lambda: (saved(Image.fromarray(noise(20, 30)), "TIFF", compression="tiff_lzw"), noise(20, 30), 0),
    "deflate RGB": lambda: (
        saved(Image.fromarray(noise(20, 30)), "TIFF", compression="tiff_adobe_deflate"),
        noise(20, 30),
        0,
    ),
    "JPEG in TIFF": lambda: (saved(Image.fromarray(blocks()), "TIFF", compression="jpeg", quality=95), blocks(), 24),
    "12 in 16 bits grey": lambda: (saved(Image.fromarray(_RAMP), "TIFF"), grey(_RAMP * (255 / 4095)), 0.5),
    "float": lambda: (saved(Image.fromarray(_FLOATS), "TIFF"), grey((_FLOATS + 3) * 17), 0.51),
    "palette": lambda: (saved(_palette(), "TIFF"), np.asarray(_palette().convert("RGB")), 0),
    "CMYK": lambda: (
        saved(Image.fromarray(noise(20, 30)).convert("CMYK"), "TIFF"),
        np.asarray(Image.fromarray(noise(20, 30)).convert("CMYK").convert("RGB")),
        0,
    ),
    "1 bit": lambda: (saved(_FAX, "TIFF"), grey(_MASK * np.uint8(255)), 0),
    "fax": lambda: (saved(_FAX, "TIFF", compression="group4"), grey(_MASK * np.uint8(255)), 0),
    "alpha": lambda: (saved(Image.fromarray(_rgba()), "TIFF"), _on_white(_rgba()), 0),
    "grey and alpha": lambda: (
        saved(Image.fromarray(_rgba()[:, :, [0, 3]], "LA"), "TIFF"),
        _on_white(_rgba()[:, :, [0, 0, 0, 3]]),
        0,
    ),
    "tiles": lambda: (tiff(noise(40, 50), photometric="rgb", tile=(16, 16)), noise(40, 50), 0),
    "several pages": lambda: (_several_pages(), noise(20, 30), 0),
}


@pytest.mark.parametrize("name", WORKED)
@pytest.mark.parametrize("codecs", [True, False], ids=["imagecodecs", "without"])
def test_files_that_worked_still_do(name: str, codecs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data, pixels, tolerance = WORKED[name]()
    if not codecs:
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
    assert np.abs(decoded(data) - pixels.astype(np.float64)).max() <= tolerance
