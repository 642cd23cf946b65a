"""Phones, small and large windows, the dark, and who uses the page with a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.e2e.browser import OpenPage, serious_findings, wait_until
from tests.e2e.page_helpers import CUP, CUP_BOX, NEAR_CUP, SPOON, Screen
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

pytestmark = pytest.mark.triton
PHONE = {"width": 390, "height": 844, "touch": True, "scale": 2}


class Fingers:
    """On the screen of a phone, in CSS pixels."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session: CDPSession = page.context.new_cdp_session(page)

    def _send(self, kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        self._session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def slide(self, *tracks: list[tuple[float, float]]) -> None:
        """One track of places a finger, all of one length; the fingers come down one after the other."""
        for count in range(1, len(tracks) + 1):
            self._send("touchStart", *(track[0] for track in tracks[:count]))
        for places in list(zip(*tracks, strict=True))[1:]:
            self._send("touchMove", *places)
            self._page.evaluate("() => new Promise((resolve) => requestAnimationFrame(resolve))")
        self._send("touchEnd")


@pytest.fixture
def phone(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample on a phone, encoded."""
    screen = Screen(open_page(server.urls["service"], **PHONE), server.urls["service"])  # type: ignore[arg-type]
    screen.open_sample()
    return screen


@pytest.fixture
def fingers(phone: Screen) -> Fingers:
    return Fingers(phone.page)


def tap(screen: Screen, place: tuple[int, int]) -> tuple[int, int]:
    view = screen.view
    at = view.place(*place)
    screen.page.touchscreen.tap(*at)
    return view.pixel(*at)


def test_taps_add_and_take_away_on_a_phone(phone: Screen) -> None:
    """The canvas has all of the phone's pixels, and each shows the mask's under it."""
    assert phone.view.unit == 2
    cup = tap(phone, CUP)
    phone.expect_mask(phone.best(phone.asked_at(*cup)))
    phone.page.get_by_role("radio", name="Click takes away").tap()
    near = tap(phone, NEAR_CUP)
    body = phone.question(points=[cup, near], labels=[1, 0], multimask=False)
    phone.expect_mask(phone.best(body))
    phone.page.get_by_role("radio", name="Click adds").tap()
    spoon = tap(phone, SPOON)
    phone.question(points=[cup, near, spoon], labels=[1, 0, 1], multimask=False)


def test_a_finger_drags_a_box(phone: Screen, fingers: Fingers) -> None:
    view = phone.view
    start, end = view.place(*CUP_BOX[:2]), view.place(*CUP_BOX[2:])
    steps = np.linspace(start, end, 6)
    fingers.slide([(float(x), float(y)) for x, y in steps])
    wait_until(phone.page, lambda: any("box" in body for body in phone.asked))
    (body,) = (body for body in phone.asked if "box" in body)
    expected = [*view.image_point(*start), *view.image_point(*end)]
    np.testing.assert_allclose(body["box"], expected, atol=0.51)
    phone.expect_mask(phone.best(body))


def test_two_fingers_zoom_and_move_and_make_nothing(phone: Screen, fingers: Fingers) -> None:
    """The image's point between the fingers goes with them."""
    before = phone.view
    x, y = before.place(*CUP)
    apart, wider = 60.0, 150.0
    gaps = np.linspace(apart, wider, 8)
    shifts = np.linspace(0, 40, 8)
    left = [(x - gap / 2, y + shift) for gap, shift in zip(gaps, shifts, strict=True)]
    right = [(x + gap / 2, y + shift) for gap, shift in zip(gaps, shifts, strict=True)]
    fingers.slide(left, right)
    wait_until(phone.page, lambda: phone.view.scale != before.scale)
    phone.frames(2)
    after = phone.view
    assert after.scale / before.scale == pytest.approx(wider / apart, rel=0.05)
    found = after.image_point(x, y + 40)
    np.testing.assert_allclose(found, before.image_point(x, y), atol=8 / after.scale + 1)
    assert phone.rows.count() == 0
    assert phone.asked == []


def test_the_panel_is_a_sheet_on_a_phone(phone: Screen) -> None:
    page = phone.page
    tap(phone, CUP)
    phone.page.locator("#count-badge", has_text="1").wait_for()
    panel, button = page.locator("#panel"), page.get_by_role("button", name="Objects and export")
    assert not is_in_window(page)
    button.tap()
    wait_until(page, lambda: is_in_window(page))
    panel.get_by_label("Name of Object 1").wait_for()
    panel.get_by_role("button", name="Close").tap()
    wait_until(page, lambda: not is_in_window(page))
    assert button.get_attribute("aria-expanded") == "false"


@pytest.mark.part("page")
def test_axe_has_nothing_serious_to_say_of_the_sheet(phone: Screen, axe: str) -> None:
    tap(phone, CUP)
    phone.page.get_by_role("button", name="Objects and export").tap()
    wait_until(phone.page, lambda: is_in_window(phone.page))
    assert serious_findings(phone.page, axe) == []


def is_in_window(page: Page) -> bool:
    """Whether the sheet is to be seen, and has stopped moving."""
    return bool(
        page.evaluate(
            """() => {
              const panel = document.getElementById("panel");
              const { top, bottom, height } = panel.getBoundingClientRect();
              const style = getComputedStyle(panel);
              return style.visibility !== "hidden" && style.display !== "none" && height > 0
                && top < innerHeight - 10 && bottom <= innerHeight + 1;
            }"""
        )
    )


@pytest.mark.parametrize(
    "width", [390, *(pytest.param(width, marks=pytest.mark.part("page")) for width in (360, 768, 1280, 2560))]
)
def test_nothing_is_wider_than_the_window(server: RunningServer, open_page: OpenPage, width: int) -> None:
    """Empty and with an object; every button of the bar and of the tools can be reached."""
    height = {360: 640, 390: 844, 768: 1024, 1280: 800, 2560: 1440}[width]
    page = open_page(server.urls["service"], width=width, height=height, touch=width < 700)
    screen = Screen(page, server.urls["service"])
    fits: Callable[[], bool] = lambda: page.evaluate(  # noqa: E731
        "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    )
    assert fits()
    screen.open_sample()
    tap(screen, CUP) if width < 700 else screen.click(*CUP)
    screen.page.locator("#count-badge", has_text="1").wait_for(state="attached")
    assert fits()
    outside = page.evaluate(
        """() => [...document.querySelectorAll(".top button, .top select, .tools button")]
          .filter((button) => button.offsetParent !== null)
          .filter((button) => {
            const { left, right, width } = button.getBoundingClientRect();
            return width === 0 || left < -1 || right > innerWidth + 1;
          })
          .map((button) => button.id || button.getAttribute("aria-label"))"""
    )
    assert outside == []


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.part("page"))], ids=["light", "dark"])
def test_axe_has_nothing_serious_to_say(server: RunningServer, open_page: OpenPage, axe: str, dark: bool) -> None:
    """The start, with objects, with a sentence of the server's, with the samples and with the help open."""
    page = open_page(server.urls["service"], dark=dark)
    screen = Screen(page, server.urls["service"])
    page.locator("#shelf .sample").first.wait_for()
    assert serious_findings(page, axe) == []
    screen.open_sample()
    screen.click(*CUP)
    screen.press("n")
    screen.click(*SPOON)
    page.locator("#objects .facts", has_text="px").first.wait_for()
    page.get_by_role("radio", name="Brush").click()
    assert serious_findings(page, axe) == []
    for button, dialog in (("Help and shortcuts", "#help-dialog"), ("Samples", "#samples-dialog")):
        page.get_by_role("button", name=button).click()
        page.locator(dialog).wait_for()
        assert serious_findings(page, axe) == []
        page.locator(dialog).get_by_role("button", name="Close").click()
        page.locator(dialog).wait_for(state="hidden")
