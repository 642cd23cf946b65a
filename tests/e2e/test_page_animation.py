"""The moving picture of the page in the README: the mouse over a photograph, two clicks, and everything in it.

``UPDATE_PICTURES=1 pytest --part page tests/e2e/test_page_animation.py`` records docs/images/page.webp anew.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.e2e.browser import OpenPage
from tests.e2e.page_helpers import CUP, PATIENCE, SAUCER, SPOON, Screen
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.triton, pytest.mark.part("page"), pytest.mark.timeout(600)]

PATH = Path(__file__).resolve().parents[2] / "docs" / "images" / "page.webp"
SIZE = (920, 600)
MOST_BYTES = 2_000_000
QUALITY = 72
#: Of 255: see test_page_pictures.
TOLERANCE = 8.0
#: The outline of a mouse pointer, with its tip at 0, 0; and how much finer it is drawn, for smooth edges.
ARROW = ((0, 0), (0, 17), (4, 13.5), (6.8, 20), (9.4, 18.9), (6.7, 12.6), (12, 12.6))
FINER = 4
ENLARGED = 1.25
#: Of 1: so far the search has come on from one frame to the next.
PROGRESS = 0.12


class Film:
    """Screenshots with the mouse pointer drawn into them, which no screenshot shows."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.page = screen.page
        self.frames: list[tuple[Image.Image, int]] = []
        self.key_frames: list[int] = []
        self._mouse = (SIZE[0] * 0.62, SIZE[1] * 0.93)

    def shoot(self, milliseconds: int, *, pressed: bool = False, key: bool = False) -> None:
        """The page as it is.

        Args:
            pressed: with a ring around the pointer.
            key: the same in each recording.
        """
        self.screen.frames(2)
        png = self.page.screenshot(type="png", animations="disabled", caret="hide")
        with Image.open(io.BytesIO(png)) as taken:
            picture = taken.convert("RGB")
        if key:
            self.key_frames.append(len(self.frames))
        self.frames.append((with_pointer(picture, self._mouse, pressed=pressed), milliseconds))

    def glide(self, x: float, y: float, *, steps: int = 5, is_real: bool = True) -> None:
        """The mouse to a place of the window; what is on the way is as the page shows it in passing."""
        (from_x, from_y), share = self._mouse, np.linspace(0, 1, steps + 1)[1:]
        for part in share * share * (3 - 2 * share):  # slower at both ends, as a hand
            self._mouse = (round(from_x + (x - from_x) * part), round(from_y + (y - from_y) * part))
            if is_real:
                self.page.mouse.move(*self._mouse)
                self.page.wait_for_timeout(120)
            self.shoot(80)
        self.frames.pop()  # a frame of its own follows

    def hover(self, place: tuple[int, int]) -> None:
        """Over an original pixel, until the mask under it is shown."""
        view = self.screen.view
        at = view.place(*place)
        self.glide(*at)
        self.screen.expect_mask(self.screen.best(self.screen.asked_at(*view.pixel(*at))), "preview")
        self.shoot(750, key=True)

    def click(self) -> None:
        self.shoot(160, pressed=True)
        self.page.mouse.down()
        self.page.mouse.up()

    def press(self, button: Locator, *, shown: int = 300) -> None:
        """A button, so quickly that no mask is looked for on the way."""
        box = button.bounding_box()
        assert box is not None
        place = (box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6)
        self.page.mouse.move(*place)
        self.page.wait_for_timeout(300)
        self.glide(*place, steps=4, is_real=False)
        self.shoot(shown)
        self.click()

    def write(self, path: Path) -> None:
        first, *rest = [picture for picture, _ in self.frames]
        durations = [milliseconds for _, milliseconds in self.frames]
        path.parent.mkdir(parents=True, exist_ok=True)
        first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, quality=QUALITY, method=6)


def with_pointer(picture: Image.Image, mouse: tuple[float, float], *, pressed: bool) -> Image.Image:
    side = 48
    pointer = Image.new("RGBA", (side * FINER, side * FINER))
    pen, middle = ImageDraw.Draw(pointer), side * FINER / 2
    if pressed:
        radius = 15 * FINER
        box = (middle - radius, middle - radius, middle + radius, middle + radius)
        pen.ellipse(box, fill=(255, 210, 0, 90), outline=(255, 210, 0, 255), width=2 * FINER)
    outline = [(middle + x * FINER * ENLARGED, middle + y * FINER * ENLARGED) for x, y in ARROW]
    pen.polygon(outline, fill="white", outline="black", width=FINER + 1)
    pointer = pointer.resize((side, side), Image.Resampling.LANCZOS)
    picture.paste(pointer, (round(mouse[0]) - side // 2, round(mouse[1]) - side // 2), pointer)
    return picture


def find_everything(film: Film) -> None:
    """With a frame whenever the bar has moved on, however long a machine takes."""
    page = film.page
    film.press(page.locator("#find-start"))
    page.locator("#find-progress").wait_for()
    shown = -1.0
    while page.locator("#find-progress").is_visible():
        reached = page.evaluate("() => document.getElementById('find-bar').value")
        if reached - shown >= PROGRESS:
            film.shoot(350)
            shown = reached
        page.wait_for_timeout(100)
    page.locator("#found-text", has_text="found, all shown").wait_for(timeout=PATIENCE * 1000)
    film.shoot(3500, key=True)


def record(screen: Screen) -> Film:
    """Masks under the mouse, two clicks, and everything in another image."""
    film, page = Film(screen), screen.page
    page.locator("#find-points").select_option("16")
    page.evaluate("() => document.activeElement.blur()")
    film.shoot(600, key=True)
    for place in (SAUCER, SPOON):
        film.hover(place)
    film.click()
    screen.rows.first.locator(".facts", has_text="px").wait_for()
    film.shoot(700)
    page.keyboard.press("n")
    film.hover(CUP)
    film.click()
    page.locator("#objects .facts", has_text="px").first.wait_for()
    page.wait_for_timeout(500)
    film.shoot(900, key=True)
    film.press(page.locator("#show-samples"))
    card = page.locator(".sample[data-sample=coins]").and_(page.locator(":visible"))
    card.locator("img").wait_for()
    with page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
        film.press(card)
    assert encoded.value.ok
    page.locator("#find-start:enabled").wait_for()
    page.wait_for_timeout(500)
    film.shoot(700, key=True)
    find_everything(film)
    return film


def stored_frames() -> list[Image.Image]:
    assert PATH.exists(), f"{PATH} is not there: record it with UPDATE_PICTURES=1"
    with Image.open(PATH) as film:
        frames = []
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            frames.append(film.convert("RGB"))
    return frames


def test_the_stored_film() -> None:
    """Small enough for a page that people open, and in motion."""
    assert PATH.stat().st_size < MOST_BYTES
    frames = stored_frames()
    assert len(frames) > 20
    assert frames[0].size == SIZE


def test_the_film(real_server: RunningServer, open_page: OpenPage) -> None:
    url = real_server.urls["service"]
    width, height = SIZE
    screen = Screen(open_page(url, width=width, height=height), url, is_analytic=False)
    screen.open_sample()
    film = record(screen)
    if os.environ.get("UPDATE_PICTURES"):
        film.write(PATH)
    stored = stored_frames()
    for number in film.key_frames:
        is_last = number == len(film.frames) - 1  # finding everything takes more frames on a slower machine
        there, here = stored[-1 if is_last else number], film.frames[number][0]
        difference = np.abs(np.asarray(there, float) - np.asarray(here, float)).mean()
        assert difference < TOLERANCE, f"frame {number}: {difference:.1f} of 255: record it anew with UPDATE_PICTURES=1"
