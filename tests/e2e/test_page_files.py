"""Images of every kind that people have: what a browser cannot show, what is turned, and what is large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, Screen
from tests.e2e.science_helpers import stretch, windowed
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
LARGE = (6000, 4000)
#: Time between frames while the image is moved and zoomed, in milliseconds.
FRAME_TIMES = """() => {
  window.times = [];
  let last = performance.now();
  const next = (now) => { window.times.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""


def coffee(photographs: Path) -> Image.Image:
    with Image.open(photographs / "coffee.png") as picture:
        converted: Image.Image = picture.convert("RGB")
    return converted


def make_tiff(photographs: Path, path: Path) -> Image.Image:
    coffee(photographs).save(path, "TIFF", compression="tiff_lzw")
    return coffee(photographs)


def make_deep_png(photographs: Path, path: Path) -> Image.Image:
    """12 bits of a camera in a 16-bit file: nearly black, where nobody stretches it. Gives what is shown."""
    grey = np.asarray(coffee(photographs).convert("L")).astype(np.uint16) * 16
    Image.fromarray(grey).save(path, "PNG")
    return Image.fromarray(windowed(grey, *stretch(grey))).convert("RGB")


def make_turned_jpeg(photographs: Path, path: Path) -> Image.Image:
    """As a phone writes it: the pixels lie on their side, and a tag says how to turn them. Gives the upright one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    coffee(photographs).transpose(Image.Transpose.ROTATE_90).save(path, "JPEG", quality=92, exif=exif)
    with Image.open(path) as turned:
        return turned.transpose(Image.Transpose.ROTATE_270).convert("RGB")


@pytest.mark.parametrize(
    ("name", "make", "is_converted"),
    [
        ("scan.tif", make_tiff, True),
        ("camera.png", make_deep_png, False),
        ("phone.jpg", make_turned_jpeg, False),
    ],
)
def test_a_file_is_shown_upright_and_clicked(
    server: RunningServer,
    open_page: OpenPage,
    traffic: Callable[[Page], Traffic],
    photographs: Path,
    tmp_path: Path,
    name: str,
    make: Callable[[Path, Path], Image.Image],
    is_converted: bool,
) -> None:
    """What the page shows looks as the original does, and the mask is the right one, pixel for pixel."""
    picture = make(photographs, tmp_path / name)
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    screen.open_file(tmp_path / name, picture)
    assert ("POST /v1/preview" in traffic(page).requests) == is_converted
    assert page.locator("#picture-name").inner_text() == name
    view = screen.actual_size()
    wait_until(page, lambda: screen.covered("picture").any())
    width, height = COFFEE
    screen.frames(2)
    shown = screen.canvas("picture")[int(view.y) :, int(view.x) :][:height, :width, :3].astype(float).mean(axis=-1)
    original = np.asarray(coffee(photographs)).astype(float).mean(axis=-1)
    assert np.corrcoef(shown.ravel(), original.ravel())[0, 1] > 0.97
    assert shown.std() > 20, "it is not black"

    screen.click(*CUP)
    mask = screen.best(screen.asked_at(*CUP))
    assert mask.shape == (height, width)
    screen.expect_mask(mask, exact=True)


@pytest.fixture(scope="module")
def large(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 megapixels: the coffee, again and again."""
    path = tmp_path_factory.mktemp("large") / "wall.jpg"
    Image.fromarray(np.tile(np.asarray(coffee(photographs)), (10, 10, 1))).save(path, "JPEG", quality=90)
    return path


@pytest.mark.part("page")
def test_a_large_image_is_clicked_moved_and_zoomed(
    server: RunningServer, open_page: OpenPage, traffic: Callable[[Page], Traffic], large: Path
) -> None:
    """Masks of 24 megapixels travel as run lengths, and only what is visible is drawn."""
    page = open_page(server.urls["service"])
    screen, seen = Screen(page, server.urls["service"]), traffic(page)
    screen.open_file(large)
    pixel = screen.click(3385, 2120)
    body = screen.asked_at(*pixel)
    mask = screen.best(body)
    assert mask.shape == LARGE[::-1]
    screen.expect_mask(mask)
    screen.actual_size()
    screen.expect_mask(mask)

    page.evaluate(FRAME_TIMES)
    middle = screen.view.place(3000, 2000)
    page.mouse.move(*middle)
    for step in range(30):
        page.mouse.wheel(0, 80 if step % 2 else -90)
    page.mouse.down(button="middle")
    for step in range(30):
        page.mouse.move(middle[0] - 8 * step, middle[1] - 4 * step)
    page.mouse.up(button="middle")
    screen.frames(2)
    times = np.array(page.evaluate("window.times"))
    print(f"frames of 24 Mpx: median {np.median(times):.0f} ms, slowest {times.max():.0f} ms")  # noqa: T201
    screen.expect_mask(mask)
    answer = screen.api.post("/v1/segment", json={name: body[name] for name in body if name != "id"})
    assert len(answer.content) < 200_000
    assert all(len(frame) < 200_000 for frame in seen.frames_received)
