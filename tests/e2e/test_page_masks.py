"""Masks on the page's canvases are the right ones, pixel for pixel, under the mouse and after a click."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, CUP_BOX, NEAR_CUP, SAUCER, SPOON, TABLE, Screen, picture_in
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.triton

#: Looks at #preview in every frame and counts those in which it shows nothing.
RECORDER = """() => {
  const canvas = document.getElementById("preview");
  const context = canvas.getContext("2d");
  window.recorded = { frames: 0, empty: 0, isOver: false };
  const look = () => {
    if (window.recorded.isOver) return;
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let at = 3;
    while (at < data.length && data[at] === 0) at += 4;
    window.recorded.frames += 1;
    if (at >= data.length) window.recorded.empty += 1;
    requestAnimationFrame(look);
  };
  look();
}"""
#: While window.held is a list, what comes on a socket waits in it.
HELD_ANSWERS = """
  window.held = null;
  window.WebSocket = class extends window.WebSocket {
    set onmessage(take) {
      super.onmessage = (event) => (window.held ? window.held.push(() => take(event)) : take(event));
    }
  };
"""
RELEASE = """() => {
  const held = window.held;
  window.held = null;
  for (const take of held) take();
}"""
#: All that the progress line has said.
LISTENER = """() => {
  window.said = [];
  new MutationObserver(() => window.said.push(document.getElementById("progress-text").textContent))
    .observe(document.getElementById("progress-text"), { childList: true, characterData: true, subtree: true });
}"""


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample, encoded."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    return screen


def test_a_sample_is_shown_and_can_be_clicked_before_it_is_encoded(server: RunningServer, open_page: OpenPage) -> None:
    """A sample that no other test opens, so that it is really encoded, and no sooner than the test wants it."""
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    held: list[Route] = []
    page.route("**/v1/images", lambda route: held.append(route))
    page.evaluate(LISTENER)
    page.locator("#shelf .sample[data-sample=cat]").click()
    page.locator("#surface").wait_for()
    assert not page.locator("#welcome").is_visible()
    wait_until(page, lambda: screen.covered("picture").any())
    page.locator("#progress").wait_for()
    wait_until(page, lambda: held)

    pixel = screen.click(230, 160)
    page.locator("#objects .facts", has_text="waiting for the mask").wait_for()
    page.keyboard.press("+")  # the view goes on working meanwhile
    assert not screen.asked
    held[0].continue_()
    screen.picture = picture_in(screen.api.get("/samples/cat").content)
    screen.expect_mask(screen.best(screen.asked_at(*pixel)))
    page.locator("#progress").wait_for(state="hidden")
    assert any(text.startswith("Encoding the image") for text in page.evaluate("window.said"))


def test_the_mask_under_the_mouse_stays_until_the_next_one(screen: Screen, traffic: Callable[[Page], Traffic]) -> None:
    """Never an empty frame while the mouse moves within the image, and no question while it rests."""
    page, seen = screen.page, traffic(screen.page)
    screen.actual_size()
    first = screen.move(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*first)), "preview", exact=True)
    page.evaluate(RECORDER)
    for place in (CUP, SAUCER, TABLE):
        pixel = screen.move(*place)
        screen.expect_mask(screen.best(screen.asked_at(*pixel)), "preview", exact=True)
    for step in range(30):  # faster than answers come
        screen.move(200 + 8 * step, 80 + 4 * step)
    last = screen.move(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*last)), "preview", exact=True)
    page.evaluate("window.recorded.isOver = true")
    recorded = page.evaluate("window.recorded")
    assert recorded["frames"] > 20
    assert recorded["empty"] == 0

    wait_until(page, lambda: seen.in_flight == 0)
    before = (len(seen.requests), len(seen.frames_sent))
    screen.frames(30)
    assert (len(seen.requests), len(seen.frames_sent)) == before
    page.mouse.move(5, 5)
    screen.expect_empty("preview")
    screen.expect_empty("masks")


def test_the_mask_of_an_older_place_is_never_shown_after_a_newer_ones(
    server: RunningServer, open_page: OpenPage
) -> None:
    """Answers come when the test lets them: back on a known place, outside of the image, while the mouse goes on."""
    page = open_page("about:blank")
    page.add_init_script(HELD_ANSWERS)
    page.goto(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    spoon = screen.move(*SPOON)
    spoon_mask = screen.best(screen.asked_at(*spoon))
    screen.expect_mask(spoon_mask, "preview", exact=True)

    page.evaluate("window.held = []")
    cup = screen.move(*CUP)
    screen.asked_at(*cup)
    wait_until(page, lambda: page.evaluate("window.held.length") == 1)
    screen.move(*SPOON)
    page.evaluate(RELEASE)
    screen.frames(2)
    screen.expect_mask(spoon_mask, "preview", exact=True)

    page.evaluate("window.held = []")
    screen.asked_at(*screen.move(*SAUCER))
    wait_until(page, lambda: page.evaluate("window.held.length") == 1)
    page.mouse.move(5, 5)
    screen.expect_empty("preview")
    page.evaluate(RELEASE)
    screen.frames(2)
    assert not screen.covered("preview").any(), "the mouse has left the image"

    page.evaluate("window.held = []")
    screen.move(*TABLE)
    wait_until(page, lambda: page.evaluate("window.held.length") == 1)
    screen.move(200, 200)
    last = screen.move(*NEAR_CUP)
    page.evaluate(RELEASE)
    screen.expect_mask(screen.best(screen.asked_at(*last)), "preview", exact=True)
    assert [200, 200] not in [body["points"][0] for body in screen.asked], "only the newest place is asked about"


def test_a_click_and_its_three_masks_are_right(screen: Screen) -> None:
    """What is shown first is the one with the best score; Q goes through all of them, buttons choose one."""
    page = screen.page
    screen.actual_size()
    pixel = screen.click(*CUP)
    assert pixel == CUP, "at 1:1 the page names the pixel under the mouse"
    body = screen.asked_at(*CUP)
    candidates = screen.answers(body)
    assert len(candidates) == 3
    assert candidates[0][0].shape == COFFEE[::-1]
    screen.expect_mask(screen.best(body), exact=True)
    for mask, _ in candidates:
        screen.press("q")
        screen.expect_mask(mask, exact=True)
    screen.press("q")
    screen.expect_mask(screen.best(body), exact=True)
    for number, (mask, score) in enumerate(candidates, 1):
        page.get_by_role("radio", name=f"Mask {number}, score {score:.2f}").click()
        screen.expect_mask(mask, exact=True)
    page.get_by_role("radio", name="Auto").click()
    screen.click(*SAUCER)
    page.locator("#choice").wait_for(state="hidden")  # two points mean one mask


def test_a_click_that_takes_away_is_right(screen: Screen) -> None:
    """With Shift, with the right button, and after the sign was chosen; each at a place of its own."""
    screen.actual_size()
    screen.click(*CUP)
    before = screen.best(screen.asked_at(*CUP))
    screen.expect_mask(before, exact=True)
    places = {"shift": NEAR_CUP, "right button": (345, 120), "sign": (385, 150)}
    for way, place in places.items():
        if way == "sign":
            screen.page.get_by_role("radio", name="Click takes away").click()
        screen.click(*place, button="right" if way == "right button" else "left", shift=way == "shift")
        after = screen.best(screen.question(points=[CUP, place], labels=[1, 0], multimask=False))
        assert not np.array_equal(after, before)
        screen.expect_mask(after, exact=True)
        screen.press("Control+z")
        screen.expect_mask(before, exact=True)


def test_clicks_after_each_other_refine_one_object(screen: Screen) -> None:
    screen.actual_size()
    screen.click(*CUP)
    screen.click(*SAUCER)
    screen.click(*NEAR_CUP, shift=True)
    body = screen.question(points=[CUP, SAUCER, NEAR_CUP], labels=[1, 1, 0], multimask=False)
    screen.expect_mask(screen.best(body), exact=True)
    assert screen.rows.count() == 1


def test_a_box_is_right_and_clicks_refine_it(screen: Screen) -> None:
    view = screen.actual_size()
    x0, y0, x1, y1 = CUP_BOX
    corners = screen.drag((x1, y1), (300, 60), (x0, y0))  # from below to above: a person may begin anywhere
    edges = [round(value) for value in (*corners[-1], *corners[0])]
    assert edges == [x0, y0, x1, y1], view
    screen.expect_mask(screen.best(screen.question(box=edges, multimask=False)), exact=True)
    screen.click(*CUP)
    body = screen.question(box=edges, points=[CUP], labels=[1], multimask=False)
    screen.expect_mask(screen.best(body), exact=True)


def test_at_any_zoom_a_pixel_of_the_screen_shows_the_pixel_under_its_centre(screen: Screen) -> None:
    """Under the mouse and kept, enlarged by a crooked factor and made small."""
    page, near = screen.page, (CUP[0] + 30, CUP[1] + 40)
    for steps, direction in ((5, -1), (9, 1)):
        screen.move(*CUP)
        for _ in range(steps):
            page.mouse.wheel(0, direction * 97)
            screen.frames(1)
        assert screen.view.scale != 1
        pixel = screen.move(*near)
        mask = screen.best(screen.asked_at(*pixel))
        screen.expect_mask(mask, "preview")
        assert screen.click(*near) == pixel
        screen.expect_mask(mask)
        screen.press("Control+z")
        screen.expect_empty()


def test_never_more_than_two_questions_are_in_flight(screen: Screen, traffic: Callable[[Page], Traffic]) -> None:
    """A wild mouse with clicks in between, without a pause."""
    seen = traffic(screen.page)
    seen.most_in_flight = 0
    random = np.random.default_rng(7)
    for step, (x, y) in enumerate(random.integers((0, 0), COFFEE, (90, 2))):
        if step % 12 == 5:
            screen.click(int(x), int(y), shift=step % 24 == 5)
        elif step % 30 == 7:
            screen.press("n")
        else:
            screen.move(int(x), int(y))
    wait_until(screen.page, lambda: seen.in_flight == 0)
    assert seen.frames_sent
    assert "POST /v1/segment" in seen.requests
    assert 1 <= seen.most_in_flight <= 2
