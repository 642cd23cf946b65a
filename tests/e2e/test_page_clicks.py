"""What clicks do on the page: the preview of a change, points that move, one click per object, and clean masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import CUP, CUP_BOX, NEAR_CUP, SAUCER, SPOON, TABLE, Mask, Screen
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.masks import decode
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
MOVED = (CUP[0] - 30, CUP[1] + 20)


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample at 1:1."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    return screen


# the preview of a change


def inner(mask: Mask) -> Mask:
    """Without three pixels along its border, where outlines are."""
    framed = np.pad(mask, 3)
    shifts = [np.roll(framed, (down, right), (0, 1)) for down in range(-3, 4) for right in range(-3, 4)]
    return np.asarray(np.all(shifts, axis=0)[3:-3, 3:-3])


def shades(screen: Screen, mask: Mask) -> set[str]:
    """How the preview draws the inside of an area: light, dark, or in a colour."""
    pixels = screen.canvas("preview")[inner(screen.view.sample(mask))].astype(int)
    assert len(pixels) > 50, "nothing would be compared"
    assert (pixels[:, 3] > 0).all()
    low, high = pixels[:, :3].min(axis=1), pixels[:, :3].max(axis=1)
    names = np.select([low > 200, high < 60], ["light", "dark"], "coloured")
    return set(names.tolist())


def test_the_preview_shows_what_would_come_and_what_would_go(screen: Screen) -> None:
    """Two looks that differ without colours, only where something changes, and a plain one for a new object."""
    screen.move(*CUP)
    new = screen.best(screen.asked_at(*CUP))
    screen.expect_mask(new, "preview", exact=True)
    assert shades(screen, new) == {"coloured"}
    screen.click(*CUP)
    screen.expect_mask(new, exact=True)

    screen.move(*SAUCER)
    grown = screen.best(screen.question(points=[CUP, SAUCER], labels=[1, 1], multimask=False))
    assert (grown & ~new).any()
    screen.expect_mask(grown ^ new, "preview", exact=True)
    assert shades(screen, grown & ~new) == {"coloured"}

    screen.move(*NEAR_CUP)
    screen.page.keyboard.down("Shift")
    shrunk = screen.best(screen.question(points=[CUP, NEAR_CUP], labels=[1, 0], multimask=False))
    screen.expect_mask(shrunk ^ new, "preview", exact=True)
    assert shades(screen, new & ~shrunk) == {"light", "dark"}
    screen.page.keyboard.up("Shift")
    screen.page.get_by_role("radio", name="Click takes away").click()
    screen.move(*NEAR_CUP)
    screen.expect_mask(shrunk ^ new, "preview", exact=True)


# points


def test_a_point_is_dragged_and_the_change_is_seen_on_the_way(screen: Screen) -> None:
    screen.click(*CUP)
    before = screen.best(screen.asked_at(*CUP))
    screen.expect_mask(before, exact=True)
    view, page = screen.view, screen.page
    page.mouse.move(*view.place(*CUP))
    page.mouse.down()
    page.mouse.move(*view.place(CUP[0] - 12, CUP[1] + 8))
    page.mouse.move(*view.place(*MOVED))
    after = screen.best(screen.asked_at(*MOVED))
    screen.expect_mask(before ^ after, "preview", exact=True)
    screen.expect_mask(before, exact=True)
    page.mouse.up()
    screen.expect_mask(after, exact=True)
    assert screen.rows.count() == 1
    screen.press("Control+z")
    screen.expect_mask(before, exact=True)
    screen.press("Control+Shift+z")
    screen.expect_mask(after, exact=True)


def test_points_are_deleted_by_mouse_keyboard_and_button(screen: Screen) -> None:
    page, button = screen.page, screen.page.get_by_role("button", name="Delete point")
    screen.click(*CUP)
    one = screen.best(screen.asked_at(*CUP))
    screen.click(*SAUCER)
    both = screen.best(screen.question(points=[CUP, SAUCER], labels=[1, 1], multimask=False))
    screen.expect_mask(both, exact=True)

    page.keyboard.down("Alt")
    screen.click(*SAUCER)
    page.keyboard.up("Alt")
    screen.expect_mask(one, exact=True)
    screen.press("Control+z")
    screen.expect_mask(both, exact=True)

    screen.click(*SAUCER)  # on a point: selects it
    button.wait_for()
    button.click()
    screen.expect_mask(one, exact=True)
    button.wait_for(state="hidden")
    screen.press("Control+z")
    screen.expect_mask(both, exact=True)

    page.mouse.move(*screen.view.place(*TABLE))
    screen.press("p")
    screen.press("p")
    page.locator("#announcements", has_text="Point 2 of 2, adds").wait_for(state="attached")
    for _ in range(3):
        screen.press("ArrowRight")
    moved = (SAUCER[0] + 12, SAUCER[1])
    body = screen.question(points=[CUP, moved], labels=[1, 1], multimask=False)
    screen.expect_mask(screen.best(body), exact=True)
    screen.press("Control+z")  # the moves are one step
    screen.expect_mask(both, exact=True)
    screen.press("Delete")
    screen.expect_mask(one, exact=True)
    screen.press("p")
    screen.press("Delete")
    wait_until(page, lambda: screen.rows.count() == 0)  # nothing was left of the object


def test_a_corner_of_a_box_is_dragged(screen: Screen) -> None:
    x0, y0, x1, y1 = CUP_BOX
    screen.drag((x0, y0), (x1, y1))
    screen.expect_mask(screen.best(screen.question(box=CUP_BOX, multimask=False)), exact=True)
    view = screen.view
    screen.drag((x1, y1), (x1 - 40, y1 - 60))
    dragged = [*view.image_point(*view.place(x1 - 40, y1 - 60))]
    box = [x0, y0, *(round(value) for value in dragged)]
    wait_until(screen.page, lambda: any("box" in body and body["box"] != [*CUP_BOX] for body in screen.asked))
    body = next(body for body in reversed(screen.asked) if "box" in body)
    assert np.abs(np.subtract(body["box"], box)).max() <= 1
    screen.expect_mask(screen.best(body), exact=True)
    assert screen.rows.count() == 1


# one click per object


def test_one_click_per_object(screen: Screen) -> None:
    page = screen.page
    screen.press("s")
    assert page.get_by_label("One click per object").is_checked()
    for place in (CUP, SPOON, TABLE):
        screen.click(*place)
    wait_until(page, lambda: screen.rows.count() == 3)
    assert not page.locator("#objects > li.active").count()
    for place in (CUP, SPOON, TABLE):
        screen.asked_at(*place)
    screen.press("Control+z")
    wait_until(page, lambda: screen.rows.count() == 2)
    page.keyboard.down("Alt")
    screen.click(CUP[0] + 15, CUP[1])
    page.keyboard.up("Alt")
    page.locator("#objects > li.active").wait_for()
    screen.click(*SAUCER)  # an object that was chosen is refined
    screen.question(points=[CUP, SAUCER], labels=[1, 1], multimask=False)
    assert screen.rows.count() == 2
    page.reload()
    page.locator("html[data-ready=yes]").wait_for()
    wait_until(page, lambda: page.get_by_label("One click per object").is_checked())
    page.get_by_label("One click per object").click()
    screen.press("n")
    screen.click(*TABLE)
    page.locator("#objects > li.active").wait_for()


# clean masks


def speckled() -> Image.Image:
    """A red square on grey, with grey dots in it and red dots beside it."""
    pixels = np.full((512, 512, 3), 90, np.uint8)
    pixels[206:306, 206:306] = (220, 30, 30)
    for x, y in ((230, 230), (270, 250), (250, 280)):
        pixels[y : y + 6, x : x + 6] = 90
    for x, y in ((196, 256), (256, 312)):
        pixels[y : y + 6, x : x + 6] = (220, 30, 30)
    return Image.fromarray(pixels)


def test_small_holes_and_islands_are_cleaned_on_the_screen_and_in_exports(screen: Screen, tmp_path: Path) -> None:
    page, slider = screen.page, screen.page.get_by_label("Clean up")
    path = tmp_path / "speckled.png"
    speckled().save(path)
    screen.open_file(path)
    screen.actual_size()
    place = screen.click(260, 262)
    body = screen.asked_at(*place)
    answer = screen.api.post("/v1/segment", json={name: value for name, value in body.items() if name != "id"}).json()
    raw = decode(answer["mask"])
    cleaned = clean_mask(raw, Cleaning(64, 64))
    assert (cleaned & ~raw).any(), "there is a hole"
    assert (raw & ~cleaned).any(), "there is an island"
    screen.expect_mask(cleaned, exact=True)
    check_coco(screen, tmp_path, cleaned, {"holes": 64, "islands": 64})

    slider.focus()
    page.keyboard.press("Home")
    screen.expect_mask(raw, exact=True)
    assert slider.get_attribute("aria-valuetext") == "off"
    check_coco(screen, tmp_path, raw, None)
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    some = clean_mask(raw, Cleaning(16, 16))
    screen.expect_mask(some, exact=True)
    page.reload()
    page.locator("html[data-ready=yes]").wait_for()
    wait_until(page, lambda: slider.get_attribute("aria-valuetext") == "16 px")
    screen.press("a")
    wait_until(page, lambda: screen.view.scale == 1)
    screen.expect_mask(some, exact=True)


def check_coco(screen: Screen, folder: Path, mask: Mask, clean: dict[str, int] | None) -> None:
    with screen.page.expect_download() as begun:
        screen.page.get_by_role("button", name="COCO JSON").click()
    path = folder / "coco.json"
    begun.value.save_as(path)
    coco = COCO(str(path))
    (annotation,) = coco.loadAnns(coco.getAnnIds())
    np.testing.assert_array_equal(coco.annToMask(annotation).astype(bool), mask)
    assert json.loads(path.read_text())["info"].get("clean") == clean
