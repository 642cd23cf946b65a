"""The pictures of the page in the documentation: taken here, and compared with it.

``UPDATE_PICTURES=1 pytest tests/e2e/test_page_pictures.py`` writes them anew.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.e2e.browser import OpenPage, PageLog
from tests.e2e.page_helpers import CUP, SAUCER, SPOON, TABLE, Screen, service_of
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.triton, pytest.mark.part("page")]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
UPDATE = "UPDATE_PICTURES"
QUALITY = 88
#: Of 255. Fonts and their anti-aliasing differ between machines, and a latency is never the same twice; a page whose
#: mask, panel or colours are others is far beyond it.
TOLERANCE = 8.0


def check_picture(page: Page, name: str) -> None:
    """Writes docs/images/page-<name>.jpg, or compares the page with it: its size, and the mean difference."""
    page.evaluate("() => document.fonts.ready")
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    taken = page.screenshot(type="jpeg", quality=QUALITY, animations="disabled", caret="hide")
    path = FOLDER / f"page-{name}.jpg"
    if os.environ.get(UPDATE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(taken)
        return
    assert path.exists(), f"{path} is not there: take it with {UPDATE}=1"
    with Image.open(path) as stored, Image.open(io.BytesIO(taken)) as now:
        assert now.size == stored.size, f"{name}: take it anew with {UPDATE}=1"
        difference = np.abs(np.asarray(now.convert("RGB"), float) - np.asarray(stored.convert("RGB"), float)).mean()
    assert difference < TOLERANCE, f"{name}: {difference:.1f} of 255 beside the stored one; {UPDATE}=1 takes it anew"


def opened(page: Page, url: str) -> Screen:
    screen = Screen(page, url, is_analytic=False)
    screen.open_sample()
    return screen


def make_three_objects(screen: Screen) -> None:
    """The spoon, the cup and the saucer, with names, and the mouse elsewhere."""
    shown = []
    for name, place in (("Saucer", SAUCER), ("Cup", CUP), ("Spoon", SPOON)):
        pixel = screen.click(*place)
        shown.append(screen.best(screen.asked_at(*pixel)))
        screen.rows.first.locator(".facts", has_text="px").wait_for()
        field = screen.rows.first.locator(".name")
        field.fill(name)
        field.press("Enter")
        screen.press("n")
    screen.page.get_by_label("Name of Cup").click()
    screen.page.locator("#surface").focus()
    screen.page.mouse.move(3, 3)
    screen.expect_mask(shown[0] | shown[1] | shown[2])
    screen.expect_empty("preview")


def test_the_start(real_server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(real_server.urls["service"])
    page.locator("#status-connection[data-state=ready]").wait_for()
    page.locator("#shelf .sample img").last.wait_for()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#shelf img')].every((image) => image.complete && image.naturalWidth)"
    )
    check_picture(page, "start")


def test_the_mask_under_the_mouse(real_server: RunningServer, open_page: OpenPage) -> None:
    screen = opened(open_page(real_server.urls["service"]), real_server.urls["service"])
    pixel = screen.move(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*pixel)), "preview")
    check_picture(screen.page, "hover")


@pytest.mark.parametrize(("name", "dark"), [("objects", False), ("dark", True)])
def test_three_objects(real_server: RunningServer, open_page: OpenPage, name: str, dark: bool) -> None:
    screen = opened(open_page(real_server.urls["service"], dark=dark), real_server.urls["service"])
    make_three_objects(screen)
    check_picture(screen.page, name)


def test_a_phone(real_server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(real_server.urls["service"], width=390, height=844, touch=True, scale=2)
    screen = opened(page, real_server.urls["service"])
    masks = []
    for place in (SAUCER, SPOON):
        view = screen.view
        at = view.place(*place)
        page.touchscreen.tap(*at)
        masks.append(screen.best(screen.asked_at(*view.pixel(*at))))
        page.locator("#next-object").tap()
    screen.expect_mask(masks[0] | masks[1])
    check_picture(page, "phone")


@pytest.fixture
def one_more_service(real_server: RunningServer) -> Iterator[tuple[str, Callable[[], None]]]:
    """Its address, and what stops it."""
    with ExitStack() as stack:
        yield stack.enter_context(service_of(real_server)), stack.close


def test_the_server_is_away(
    one_more_service: tuple[str, Callable[[], None]], open_page: OpenPage, page_log: PageLog
) -> None:
    page_log.expect("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|WebSocket connection")
    url, stop = one_more_service
    screen = opened(open_page(url), url)
    pixel = screen.click(*TABLE)
    screen.expect_mask(screen.best(screen.asked_at(*pixel)))
    screen.page.mouse.move(3, 3)
    stop()
    screen.expect_notice("server", "Your work is kept")
    check_picture(screen.page, "error")
