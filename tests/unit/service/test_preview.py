from __future__ import annotations

import asyncio
import io
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.unit.service.helpers import TIMEOUT, Fake, ask, client_of, image_file, refusal
from triton_sam.service.routes import preview as preview_module
from triton_sam.settings import Settings


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def ramp(top: int, dtype: str = "uint16") -> Image.Image:
    """[64,96], dark on the left and ``top`` on the right."""
    return Image.fromarray(np.tile(np.linspace(0, top, 96), (64, 1)).astype(dtype))


def preview(image: bytes, **settings: Any) -> httpx.Response:
    return ask("POST", "/v1/preview", settings=settings, files={"image": ("a", image)})


def shown(answer: httpx.Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/jpeg"
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.format == "JPEG"
    assert picture.mode == "RGB"
    assert answer.headers["x-image-size"] == f"{picture.width}x{picture.height}"
    return picture


@pytest.mark.parametrize(
    "image",
    [
        encoded(ramp(4095), "TIFF"),
        encoded(ramp(65535), "PNG"),
        encoded(ramp(255, "uint8"), "JPEG2000"),
        encoded(ramp(255, "uint8"), "PPM"),
        encoded(ramp(255, "uint8").convert("CMYK"), "TIFF"),
        encoded(ramp(1, "float32"), "TIFF"),
    ],
    ids=["12 of 16 bits", "16 bits", "JPEG 2000", "PPM", "CMYK", "floats"],
)
def test_what_a_browser_cannot_show(image: bytes) -> None:
    picture = shown(preview(image))
    assert picture.size == (96, 64)
    values = np.asarray(picture, np.float32)
    assert np.abs(values - np.linspace(0, 255, 96)[None, :, None]).max() < 6


def test_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert shown(preview(encoded(Image.new("RGB", (30, 20)), "JPEG", exif=exif))).size == (20, 30)


def test_colours_keep_their_edges() -> None:
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[:, ::2, 0] = 200
    stripes[:, 1::2, 2] = 200
    values = np.asarray(shown(preview(encoded(Image.fromarray(stripes), "TIFF"))), np.float32)
    assert np.abs(values - stripes).mean() < 12  # halved chroma would mix them: about 50


def test_it_asks_no_model() -> None:
    fake = Fake(state="starting", segmenters={})
    answer = ask("POST", "/v1/preview", fake, files={"image": ("a", image_file())})
    shown(answer)
    assert fake.transport.calls == []


def test_what_is_refused() -> None:
    refusal(preview(b"no image"), 400, "invalid_input")
    refusal(preview(encoded(ramp(65535), "TIFF")[:-2000]), 400, "invalid_input")
    refusal(ask("POST", "/v1/preview", data={"image": "text"}), 400, "invalid_input")
    assert "the form has no file image" in refusal(ask("POST", "/v1/preview"), 400, "invalid_input")
    refusal(preview(image_file(), max_image_bytes=10), 413, "too_large")
    refusal(preview(image_file(), max_image_pixels=10), 413, "too_large")
    refusal(preview(image_file(), max_body_bytes=10), 413, "too_large")
    refusal(preview(image_file(), token="a-very-long-word"), 401, "not_authorised")
    refusal(ask("GET", "/v1/preview"), 405, "method_not_allowed")


def test_sides_that_no_jpeg_has() -> None:
    assert "65,500" in refusal(preview(image_file(65_501, 1)), 413, "too_large")
    assert shown(preview(image_file(65_500, 1))).size == (65_500, 1)


def test_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images are large: the others wait, and take no thread meanwhile."""
    counting = threading.Lock()
    both = threading.Barrier(2)
    working = most = 0

    def held(image: bytes, settings: Settings) -> tuple[tuple[int, int], bytes]:
        nonlocal working, most
        with counting:
            working += 1
            most = max(most, working)
        both.wait(TIMEOUT)
        with counting:
            working -= 1
        return (1, 1), b""

    monkeypatch.setattr(preview_module, "_jpeg", held)

    async def run() -> list[httpx.Response]:
        async with client_of(Fake()) as client:
            files = {"image": ("a", image_file())}
            return await asyncio.gather(*(client.post("/v1/preview", files=files) for _ in range(6)))

    assert [answer.status_code for answer in asyncio.run(run())] == [200] * 6
    assert most == 2
