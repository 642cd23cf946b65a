from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile

from triton_sam.core.images import EncodedImage, file_bytes, to_rgb
from triton_sam.errors import InvalidInput

MAX_BYTES = 10_000_000
MAX_PIXELS = 100_000_000
EXIF_ORIENTATION = 0x0112

Pixels = npt.NDArray[Any]

# How a camera stores the upright picture under each orientation (EXIF 2.32, tag 0x0112).
STORED: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright.transpose(1, 0, 2), 2),
    8: lambda upright: np.rot90(upright, -1),
}


def open_image(data: bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> EncodedImage:
    return EncodedImage(data, max_bytes=max_bytes, max_pixels=max_pixels)


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    """[H,W,3]; the size that was announced must be the size that came."""
    image = open_image(data)
    picture = image.pixels()
    assert picture.mode == "RGB"
    assert picture.size == image.size
    return np.asarray(picture)


def saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def blocks(height: int = 3, width: int = 4, size: int = 16) -> npt.NDArray[np.uint8]:
    """Large blocks of different colours: no symmetry, and JPEG keeps their middles."""
    colours = np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.kron(colours, np.ones((size, size, 1), np.uint8))


def noise(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_that_declares(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


# Good images


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(form: str) -> None:
    upright = noise(13, 29)
    np.testing.assert_array_equal(decoded(saved(Image.fromarray(upright), form)), upright)


def test_lossless_webp_keeps_every_pixel() -> None:
    upright = noise(13, 29)
    np.testing.assert_array_equal(decoded(saved(Image.fromarray(upright), "WEBP", lossless=True)), upright)


def test_jpeg() -> None:
    upright = blocks()
    found = decoded(saved(Image.fromarray(upright), "JPEG", quality=95, subsampling=0))
    assert np.abs(found.astype(int) - upright).max() < 12


def test_a_memoryview_is_as_good_as_bytes() -> None:
    upright = noise(5, 6)
    view = memoryview(saved(Image.fromarray(upright), "PNG"))
    picture = EncodedImage(view, max_bytes=MAX_BYTES, max_pixels=MAX_PIXELS).pixels()
    np.testing.assert_array_equal(np.asarray(picture), upright)


def test_grey_becomes_three_equal_channels() -> None:
    grey = noise(9, 7)[:, :, 0]
    found = decoded(saved(Image.fromarray(grey), "PNG"))
    np.testing.assert_array_equal(found, np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_of_full_range(form: str) -> None:
    values = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), form))
    expected = np.floor(values / 257 + 0.5).astype(np.uint8)
    assert np.abs(found[:, :, 0].astype(int) - expected).max() <= 1
    assert found.min() == 0
    assert found.max() == 255


@pytest.mark.parametrize("bits", [10, 12, 14])
def test_a_camera_depth_inside_sixteen_bits_is_not_nearly_black(bits: int) -> None:
    top = 2**bits - 1
    values = np.linspace(0, top, 600).astype(np.uint16).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), "PNG"))
    assert np.abs(found[:, :, 0] - values * (255 / top)).max() <= 1
    assert found.max() == 255


def test_a_dark_frame_of_a_deep_camera_stays_dark() -> None:
    values = np.linspace(0, 60, 600).astype(np.uint16).reshape(20, 30)
    np.testing.assert_array_equal(decoded(saved(Image.fromarray(values), "PNG"))[:, :, 0], values)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65535, 255)])
def test_a_deep_image_of_one_value(value: int, expected: int) -> None:
    found = decoded(saved(Image.fromarray(np.full((4, 5), value, np.uint16)), "PNG"))
    assert np.unique(found).tolist() == [expected]


def test_float_tiff_is_stretched() -> None:
    values = np.linspace(-3.5, 12.25, 600, dtype=np.float32).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), "TIFF"))
    expected = (values + 3.5) / 15.75 * 255
    assert np.abs(found[:, :, 0] - expected).max() <= 1
    assert (found.min(), found.max()) == (0, 255)


def test_float_tiff_of_one_value() -> None:
    assert decoded(saved(Image.fromarray(np.full((4, 5), 0.25, np.float32)), "TIFF")).max() == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_float_tiff_with_a_value_that_is_no_number(bad: float) -> None:
    values = np.zeros((4, 5), np.float32)
    values[1, 2] = bad
    image = open_image(saved(Image.fromarray(values), "TIFF"))
    with pytest.raises(InvalidInput, match="finite"):
        image.pixels()


def test_integers_beyond_sixteen_bits_are_stretched() -> None:
    values = np.linspace(100_000, 900_000, 600).astype(np.int32).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), "TIFF"))[:, :, 0]
    assert np.abs(found - (values - 100_000) / 800_000 * 255).max() <= 1


@pytest.mark.parametrize(
    ("ink", "seen"),
    [((0, 255, 255, 0), (255, 0, 0)), ((0, 0, 0, 0), (255, 255, 255)), ((0, 0, 0, 255), (0, 0, 0))],
)
def test_cmyk_jpeg(ink: tuple[int, ...], seen: tuple[int, ...]) -> None:
    found = decoded(saved(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95))
    assert np.abs(found.astype(int) - seen).max() <= 6


def test_palette() -> None:
    upright = blocks(3, 4, 5)
    picture = Image.fromarray(upright).quantize(64, dither=Image.Dither.NONE)
    assert picture.mode == "P"
    np.testing.assert_array_equal(decoded(saved(picture, "PNG")), np.asarray(picture.convert("RGB")))
    assert np.abs(decoded(saved(picture, "PNG")).astype(int) - upright).max() < 8


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_transparent_palette_entries_are_white(form: str) -> None:
    picture = Image.new("P", (4, 2))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putdata([0, 1, 1, 0, 1, 1, 0, 1])
    found = decoded(saved(picture, form, transparency=0))
    clear = np.array([[True, False, False, True], [False, False, True, False]])
    np.testing.assert_array_equal(found[clear], np.full((3, 3), 255))
    np.testing.assert_array_equal(found[~clear], np.tile([200, 100, 50], (5, 1)))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_lies_on_white(mode: str) -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, :3] = 80
    rgba[0, :, 3] = (0, 128, 255)
    found = decoded(saved(Image.fromarray(rgba).convert(mode), "PNG"))
    half = 80 * 128 / 255 + 255 * 127 / 255
    np.testing.assert_allclose(found[0].astype(float), np.repeat([[255], [half], [80]], 3, axis=1), atol=1)


def test_a_transparent_colour_is_white() -> None:
    upright = np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8)
    found = decoded(saved(Image.fromarray(upright), "PNG", transparency=(1, 2, 3)))
    assert found.tolist() == [[[255, 255, 255], [9, 9, 9]]]


def test_one_bit() -> None:
    mask = noise(11, 13)[:, :, 0] > 127
    picture = Image.fromarray(mask)
    assert picture.mode == "1"
    np.testing.assert_array_equal(decoded(saved(picture, "PNG"))[:, :, 1], mask * 255)


def test_of_many_frames_the_first() -> None:
    colours = ["red", "lime", "blue"]
    first, *rest = (Image.new("RGB", (8, 6), colour) for colour in colours)
    data = saved(first, "GIF", save_all=True, append_images=rest)
    with Image.open(io.BytesIO(data)) as check:
        assert getattr(check, "n_frames", 1) == 3
    assert np.unique(decoded(data).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]


def test_to_rgb_leaves_rgb_alone() -> None:
    upright = noise(4, 6)
    np.testing.assert_array_equal(np.asarray(to_rgb(Image.fromarray(upright))), upright)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", sorted(STORED))
def test_rotation_is_applied_as_a_person_sees_it(form: str, orientation: int) -> None:
    upright = noise(20, 30)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    options = {"lossless": True} if form == "WEBP" else {}
    data = saved(stored, form, exif=exif, **options)
    assert open_image(data).size == (30, 20), "the size before decoding"
    np.testing.assert_array_equal(np.asarray(open_image(data).pixels()), upright)


@pytest.mark.parametrize("orientation", sorted(STORED))
def test_rotation_of_a_jpeg(orientation: int) -> None:
    upright = blocks()
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    data = saved(stored, "JPEG", exif=exif, quality=95, subsampling=0)
    assert open_image(data).size == (64, 48)
    assert np.abs(decoded(data).astype(int) - upright).max() < 12


def test_an_orientation_that_does_not_exist_is_ignored() -> None:
    upright = noise(4, 6)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 99
    np.testing.assert_array_equal(decoded(saved(Image.fromarray(upright), "PNG", exif=exif)), upright)


# Bad images


def test_empty() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        open_image(b"")


@pytest.mark.parametrize("data", [b"hello, I am no picture", b"\0" * 100, b"%PDF-1.7\n", b"\x89PNG"])
def test_not_an_image(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="no known format"):
        open_image(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_cut_in_half(form: str) -> None:
    data = saved(Image.fromarray(noise(64, 64)), form)
    image = open_image(data[: len(data) // 2])
    with pytest.raises(InvalidInput, match="damaged or cut short") as caught:
        image.pixels()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP"])
def test_damage_anywhere_is_one_sentence_or_a_picture(form: str) -> None:
    data = saved(Image.fromarray(noise(24, 24)), form)
    random = np.random.default_rng(11)
    for _ in range(40):
        broken = bytearray(data)
        for place in random.integers(0, len(broken), 6):
            broken[place] = int(random.integers(0, 256))
        refusal, mode = "", "RGB"
        try:
            mode = open_image(bytes(broken)).pixels().mode
        except InvalidInput as error:
            refusal = str(error)
        assert mode == "RGB"
        assert "\n" not in refusal


def test_too_many_bytes() -> None:
    data = saved(Image.fromarray(noise(20, 20)), "PNG")
    assert open_image(data, max_bytes=len(data)).size == (20, 20)
    with pytest.raises(InvalidInput, match=f"{len(data):,} bytes"):
        open_image(data, max_bytes=len(data) - 1)


def test_too_many_pixels() -> None:
    data = saved(Image.new("RGB", (20, 10)), "PNG")
    assert open_image(data, max_pixels=200).size == (20, 10)
    with pytest.raises(InvalidInput, match="20 x 10 = 200 pixels and 199 are allowed"):
        open_image(data, max_pixels=199)


@pytest.mark.parametrize("side", [50_000, 12_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(_: ImageFile.ImageFile) -> None:
        raise AssertionError("the bomb was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", explode)
    data = png_that_declares(side, side)
    assert len(data) < 200
    with pytest.raises(InvalidInput, match="pixels"):
        open_image(data)


def test_the_limit_on_pixels_is_ours_and_not_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 million pixels are beyond Pillow's own limit, which the server's process takes off: ours takes its place."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = png_that_declares(20_000, 10_000)
    assert open_image(data, max_pixels=200_000_000).size == (20_000, 10_000)


# What a client sends


def test_bytes_go_as_they_are() -> None:
    for same in (b"anything", bytearray(b"anything"), memoryview(b"anything")):
        assert file_bytes(same) == b"anything"


def test_the_bytes_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cells.png").write_bytes(b"content")
    assert file_bytes(tmp_path / "cells.png") == b"content"
    assert file_bytes(str(tmp_path / "cells.png")) == b"content"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert file_bytes("~/cells.png") == b"content"


@pytest.mark.parametrize("name", ["missing.png", ".", "no/such/folder/x.png"])
def test_a_path_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInput) as caught:
        file_bytes(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["a\0b", "~no-such-user-anywhere/cells.png"])
def test_text_that_cannot_be_a_path(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot read the image"):
        file_bytes(text)


GREY = noise(7, 11)[:, :, 0]


@pytest.mark.parametrize(
    ("array", "seen"),
    [
        (GREY, GREY),
        (GREY[:, :, None], GREY),
        (GREY > 99, (GREY > 99) * np.uint8(255)),
        ((GREY > 99)[:, :, None], (GREY > 99) * np.uint8(255)),
        (GREY.astype(np.uint16) * 257, GREY),
        (GREY.astype(np.uint16)[:, :, None] * 257, GREY),
        (noise(7, 11), noise(7, 11)),
        (noise(14, 22)[::2, ::2], noise(14, 22)[::2, ::2]),
        (noise(7, 11)[:, ::-1], noise(7, 11)[:, ::-1]),
        (np.asfortranarray(noise(7, 11)), noise(7, 11)),
        (noise(11, 7).transpose(1, 0, 2), noise(11, 7).transpose(1, 0, 2)),
        (noise(7, 11)[:, :, ::-1], noise(7, 11)[:, :, ::-1]),
    ],
    ids=[
        "HW",
        "HW1",
        "bool",
        "bool HW1",
        "uint16",
        "uint16 HW1",
        "HW3",
        "every second",
        "mirrored",
        "fortran",
        "transposed",
        "bgr",
    ],
)
def test_arrays(array: Pixels, seen: Pixels) -> None:
    expected = seen if seen.ndim == 3 else np.repeat(seen[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(decoded(file_bytes(array)), expected)


def test_an_array_with_transparency() -> None:
    rgba = np.dstack([noise(7, 11), np.where(GREY > 99, 255, 0).astype(np.uint8)])
    found = decoded(file_bytes(rgba))
    np.testing.assert_array_equal(found[GREY > 99], noise(7, 11)[GREY > 99])
    assert found[GREY <= 99].min() == 255


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4), np.float64),
        np.zeros((4, 4), np.int32),
        np.zeros((4, 4), np.int8),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((3, 4, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((4, 4), np.complex64),
        np.full((4, 4), "x", object),
        np.array(5, np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_that_are_no_image(array: Pixels) -> None:
    with pytest.raises(InvalidInput, match="image array"):
        file_bytes(array)


@pytest.mark.parametrize("value", [None, 5, ["a.png"], object()])
def test_other_things_are_no_image(value: Any) -> None:
    with pytest.raises(InvalidInput, match=type(value).__name__):
        file_bytes(value)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "F", "I", "I;16"])
def test_pillow_images_look_the_same_on_the_server(mode: str) -> None:
    deep = {"F": np.float32, "I": np.int32, "I;16": np.uint16}
    if mode in deep:
        values = np.linspace(0, 65535, 77).astype(np.uint16).reshape(7, 11)
        picture = Image.fromarray(values.astype(deep[mode]))
    else:
        picture = Image.fromarray(noise(7, 11)).convert(mode)
    assert picture.mode == mode
    seen = np.asarray(to_rgb(picture.copy()))
    np.testing.assert_array_equal(decoded(file_bytes(picture)), seen)


@pytest.mark.parametrize("values", [[-500, 0, 500], [0, 100_000, 4_000_000]])
def test_a_pillow_image_of_wide_integers_keeps_its_contrast(values: list[int]) -> None:
    found = decoded(file_bytes(Image.fromarray(np.array([values], np.int32))))[0, :, 0]
    low, high = min(values), max(values)
    expected = [(value - low) / (high - low) * 255 for value in values]
    assert np.abs(found - np.array(expected)).max() <= 1


def test_a_pillow_image_with_values_that_are_no_numbers() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        file_bytes(Image.fromarray(np.full((3, 3), np.nan, np.float32)))


def test_a_pillow_image_of_a_cut_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    data = saved(Image.fromarray(noise(64, 64)), "JPEG")
    path.write_bytes(data[: len(data) // 2])
    with Image.open(path) as picture, pytest.raises(InvalidInput, match="damaged or cut short"):
        file_bytes(picture)


@pytest.mark.parametrize("orientation", sorted(STORED))
def test_a_pillow_image_is_sent_upright(orientation: int) -> None:
    upright = noise(20, 30)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    with Image.open(io.BytesIO(saved(stored, "PNG", exif=exif))) as picture:
        np.testing.assert_array_equal(decoded(file_bytes(picture)), upright)
