"""Image files become upright RGB pixels, or a refusal in one sentence."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.unit.core.image_helpers import (
    EXIF_ORIENTATION,
    MAX_BYTES,
    MAX_PIXELS,
    STORED,
    blocks,
    decoded,
    noise,
    open_image,
    png_that_declares,
    saved,
)
from triton_sam.core.images import EncodedImage, to_rgb
from triton_sam.errors import InvalidInput

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


@pytest.mark.parametrize(("value", "seen"), [(0, 0), (0.25, 64), (1, 255), (100, 100), (-3, 0), (1e6, 0), (0.01, 0)])
def test_float_tiff_of_one_value(value: float, seen: int) -> None:
    found = decoded(saved(Image.fromarray(np.full((4, 5), value, np.float32)), "TIFF"))
    assert np.unique(found).tolist() == [seen]


@pytest.mark.parametrize("white", [1, 255])
def test_float_tiff_of_a_usual_range_keeps_its_brightness(white: int) -> None:
    values = np.linspace(0.2 * white, 0.6 * white, 600, dtype=np.float32).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), "TIFF"))[:, :, 0]
    assert np.abs(found - values * (255 / white)).max() <= 0.5 + 1e-3


def test_float_tiff_of_tiny_values_is_stretched() -> None:
    values = np.linspace(0, 1e-3, 600, dtype=np.float32).reshape(20, 30)
    found = decoded(saved(Image.fromarray(values), "TIFF"))
    assert (found.min(), found.max()) == (0, 255)


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


@pytest.mark.parametrize("data", [b"hello, I am no picture", b"\0" * 100, b"\x89PNG"])
def test_not_an_image(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="format is unknown"):
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
