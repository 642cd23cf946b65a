"""Objects of the page: undo and redo, the list in the panel, how masks are drawn, brush and eraser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import (
    COFFEE,
    CUP,
    CUP_BOX,
    NEAR_CUP,
    SAUCER,
    SPOON,
    TABLE,
    Mask,
    Screen,
)
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = pytest.mark.triton


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample, encoded, at 1:1."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    return screen


def click_mask(screen: Screen, place: tuple[int, int]) -> Mask:
    """A click that begins an object; its mask which is on the canvas in the end."""
    shown = screen.rows.count()
    pixel = screen.click(*place)
    mask = screen.best(screen.asked_at(*pixel))
    wait_until(screen.page, lambda: screen.rows.count() == shown + 1)
    screen.rows.first.locator(".facts", has_text="px").wait_for()
    return mask


def colour_of(row: Locator) -> str:
    return row.locator(".swatch").input_value()


def two_objects(screen: Screen) -> tuple[Mask, Mask]:
    """The cup, and over it a box around more: "Object 1" and "Object 2"."""
    cup = click_mask(screen, CUP)
    screen.press("n")
    screen.drag(CUP_BOX[:2], CUP_BOX[2:])
    boxed = screen.best(screen.question(box=CUP_BOX, multimask=False))
    screen.row("Object 2").locator(".facts", has_text="px").wait_for()
    assert (cup & boxed).any(), "one must lie over the other"
    return cup, boxed


def test_undo_to_the_empty_document_and_redo_to_the_end(screen: Screen) -> None:
    """Many steps of every kind: at each the canvas is as it was, byte for byte."""
    page = screen.page

    def answered(**prompt: object) -> None:
        screen.expect_mask(screen.best(screen.question(**prompt)) | kept)

    shown = [screen.still()]
    kept = np.zeros(COFFEE[::-1], bool)
    screen.click(*CUP)
    answered(points=[CUP], labels=[1], multimask=True)
    shown.append(screen.still())
    screen.click(*SAUCER)
    answered(points=[CUP, SAUCER], labels=[1, 1], multimask=False)
    shown.append(screen.still())
    screen.click(*NEAR_CUP, shift=True)
    answered(points=[CUP, SAUCER, NEAR_CUP], labels=[1, 1, 0], multimask=False)
    shown.append(screen.still())
    kept = screen.covered()[screen.view.sample(np.ones_like(kept))].reshape(kept.shape)
    screen.drag((340, 270), (400, 320))
    answered(box=[340, 270, 400, 320], multimask=False)
    shown.append(screen.still())
    page.get_by_role("button", name="Hide Object 1").click()
    shown.append(screen.still())
    screen.press("b")
    screen.drag((100, 100), (140, 130))
    shown.append(screen.still())
    page.get_by_label("Colour of Object 1").fill("#00ff00")
    page.get_by_role("button", name="Show Object 1").click()
    shown.append(screen.still())
    page.get_by_role("button", name="Delete Object 2").click()
    shown.append(screen.still())
    assert len(set(shown)) == len(shown), "every step is to be seen"

    undo, redo = page.get_by_role("button", name="Undo"), page.get_by_role("button", name="Redo")
    page.mouse.move(5, 5)
    assert redo.is_disabled()
    for number in (7, 6):
        undo.click()
        if number == 6:
            undo.click()  # the colour, which is not to be seen while the object is hidden
        screen.expect_same(shown[number])
    for before in reversed(shown[:6]):
        screen.press("Control+z")
        screen.expect_same(before)
    assert undo.is_disabled()
    assert screen.rows.count() == 0
    for after in shown[1:7]:
        screen.press("Control+Shift+z")
        screen.expect_same(after)
    for keys in ("Control+y", "Control+y", "Control+y"):
        screen.press(keys)
    screen.expect_same(shown[-1])
    assert redo.is_disabled()
    assert screen.names() == ["Object 1"]


def test_objects_begin_with_the_key_and_with_the_button(screen: Screen) -> None:
    first = click_mask(screen, CUP)
    screen.press("n")
    second = click_mask(screen, SPOON)
    screen.page.get_by_role("button", name="New object").click()
    third = click_mask(screen, TABLE)
    assert screen.names() == ["Object 3", "Object 2", "Object 1"]
    colours = [colour_of(row) for row in reversed(screen.rows.all())]
    assert len(set(colours)) == 3
    screen.expect_objects(*zip((first, second, third), colours, strict=True))
    screen.page.get_by_label("Name of Object 2").click()  # clicks go on with the one that is chosen
    screen.click(*SAUCER)
    screen.question(points=[SPOON, SAUCER], labels=[1, 1], multimask=False)


def test_names_colours_and_visibility(screen: Screen) -> None:
    cup, boxed = two_objects(screen)
    page = screen.page
    name = page.get_by_label("Name of Object 1")
    name.fill("Cup <b>& saucer</b>")
    name.press("Enter")
    assert screen.names() == ["Object 2", "Cup <b>& saucer</b>"]
    page.get_by_label("Colour of Object 2").fill("#123456")
    below = colour_of(screen.rows.last)
    screen.expect_objects((cup, below), (boxed, "#123456"))
    page.get_by_role("button", name="Hide Object 2").click()
    screen.expect_objects((cup, below))
    page.get_by_role("button", name="Show Object 2").click()
    screen.expect_objects((cup, below), (boxed, "#123456"))
    screen.press("h")  # the active one, which is the renamed: its name had the focus
    screen.expect_objects((boxed, "#123456"))
    page.get_by_role("button", name="Delete Object 2").click()
    screen.expect_empty()
    assert screen.names() == ["Cup <b>& saucer</b>"]
    screen.press("Delete")
    assert screen.rows.count() == 0


def test_the_topmost_object_is_seen(screen: Screen) -> None:
    cup, boxed = two_objects(screen)
    above, below = (colour_of(row) for row in screen.rows.all())
    screen.expect_objects((cup, below), (boxed, above))
    screen.page.get_by_label("Name of Object 1").click()  # the chosen one has more buttons
    screen.page.get_by_role("button", name="Bring Object 1 forward").click()
    screen.expect_objects((boxed, above), (cup, below))
    assert screen.names() == ["Object 1", "Object 2"]
    screen.page.get_by_role("button", name="Send Object 1 back").click()
    screen.expect_objects((cup, below), (boxed, above))


def alphas_in_the_end(screen: Screen) -> set[int]:
    screen.frames(2)
    return set(np.unique(screen.canvas()[..., 3]).tolist())


def test_opacity_fill_and_outline(screen: Screen) -> None:
    """The inside has the alpha that the slider says; an outline is one that nothing of the inside is left of."""
    page = screen.page
    mask = click_mask(screen, CUP)
    expected = screen.view.sample(mask)
    eroded = expected.copy()  # what is at least three pixels from everything outside
    for axis in (0, 1):
        for by in (-3, -2, -1, 1, 2, 3):
            eroded &= np.roll(expected, by, axis)
    screen.expect_mask(mask)
    page.get_by_role("radio", name="Fill").click()
    for opacity, alpha in ((80, 204), (20, 51)):
        page.locator("#opacity").fill(str(opacity))
        assert alphas_in_the_end(screen) == {0, alpha}
        screen.expect_mask(mask)
    page.get_by_role("radio", name="Outline").click()
    wait_until(page, lambda: not screen.covered()[eroded].any())
    outline = screen.canvas()[..., 3]
    assert set(np.unique(outline)) == {0, 255}
    assert not outline[~expected].any()
    neighbours = np.ones_like(expected)
    for axis, by in ((0, 1), (0, -1), (1, 1), (1, -1)):
        neighbours &= np.roll(expected, by, axis)
    assert (outline[expected & ~neighbours] > 0).mean() > 0.95, "all of the border but at the image's own ends"
    page.get_by_role("radio", name="Both").click()
    screen.expect_mask(mask)


def capsule(points: list[tuple[float, float]], radius: float) -> Mask:
    """Pixels whose centre is within the radius of a polyline, and those under its points."""
    width, height = COFFEE
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    painted = np.zeros((height, width), bool)
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1) if length else np.zeros_like(x)
        painted |= (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2 <= radius * radius
    for px, py in points:
        painted[int(np.floor(py)), int(np.floor(px))] = True
    return painted


def test_brush_and_eraser_change_exactly_the_pixels_under_them(screen: Screen) -> None:
    """Also what is painted later on top of what is erased, and a click after both keeps them."""
    page = screen.page
    mask = click_mask(screen, CUP)
    screen.press("b")
    size = page.get_by_label("Brush size in image pixels")
    size.fill("21")
    added = capsule(screen.drag((60, 60), (120, 90), (120, 200), (40, 240)), 10.5)
    screen.expect_mask(mask | added, exact=True)
    screen.press("e")
    size.fill("34")
    removed = capsule(screen.drag((385, 60), (370, 150), (90, 100)), 17)
    screen.expect_mask((mask | added) & ~removed, exact=True)
    screen.press("b")
    again = capsule([screen.view.image_point(*screen.view.place(380, 100))], 17)
    screen.click(380, 100)
    screen.expect_mask(((mask | added) & ~removed) | again, exact=True)

    screen.press("v")
    screen.click(*SAUCER)
    refined = screen.best(screen.question(points=[CUP, SAUCER], labels=[1, 1], multimask=False))
    assert not np.array_equal(refined, mask)
    screen.expect_mask((((refined | added) & ~removed) | again), exact=True)
    assert screen.rows.count() == 1


def test_a_stroke_alone_is_an_object_and_asks_nothing(screen: Screen) -> None:
    screen.press("b")
    page = screen.page
    wait_until(page, lambda: page.locator("#brush-size").is_visible())
    screen.press("]")
    diameter = float(page.locator("#brush-size").input_value())
    assert diameter == 30  # 24 * 1.25
    painted = capsule(screen.drag((200, 200), (260, 210)), 15)
    screen.expect_mask(painted, exact=True)
    page.locator("#objects .facts", has_text="by hand").wait_for()
    assert re.search(r"([\d,]+) px", screen.rows.first.locator(".facts").inner_text().replace(",", ""))
    assert screen.asked == []
    assert set(np.unique(screen.owners([colour_of(screen.rows.first)]))) == {0, 1}
