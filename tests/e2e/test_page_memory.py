"""What outlives a reload, and what two tabs do to each other: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, SAUCER, SPOON, TABLE, Screen
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton


def test_a_reload_loses_nothing_and_encodes_nothing(
    server: RunningServer, open_page: OpenPage, traffic: Callable[[Page], Traffic]
) -> None:
    """Right after the last change, as people do: what is written when the page goes must be committed at once."""
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    screen.click(*CUP)
    cup = screen.best(screen.asked_at(*CUP))
    screen.press("n")
    screen.click(*SPOON)
    spoon = screen.best(screen.asked_at(*SPOON))
    screen.expect_mask(cup | spoon)
    page.get_by_label("Colour of Object 1").fill("#aa5500")
    name = page.get_by_label("Name of Object 2")
    name.fill("Spoon")
    name.press("Enter")
    assert screen.names() == ["Spoon", "Object 1"]
    seen = traffic(page)
    before = len(seen.requests)
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Redo").click()
    page.reload()
    page.locator("#objects > li").nth(1).wait_for()
    screen.actual_size()
    assert screen.names() == ["Spoon", "Object 1"]
    assert page.title().startswith("coffee.png")
    colours = [page.get_by_label(f"Colour of {of}").input_value() for of in ("Object 1", "Spoon")]
    assert colours[0] == "#aa5500"
    screen.expect_objects((cup, colours[0]), (spoon, colours[1]))

    screen.click(*SAUCER)
    refined = screen.best(screen.question(points=[SPOON, SAUCER], labels=[1, 1], multimask=False))
    screen.expect_objects((cup, colours[0]), (refined, colours[1]))
    assert "POST /v1/images" not in seen.requests[before:]
    for _ in range(5):  # the new click, the name, the colour, and both objects
        assert page.get_by_role("button", name="Undo").is_enabled()
        screen.press("Control+z")
    screen.expect_empty()
    assert page.get_by_role("button", name="Undo").is_disabled()
    page.reload()
    page.locator("#surface").wait_for()
    for _ in range(4):
        screen.press("Control+y")
    screen.actual_size()
    screen.expect_objects((cup, colours[0]), (spoon, colours[1]))


def test_two_tabs_keep_their_own_work(server: RunningServer, open_page: OpenPage) -> None:
    url = server.urls["service"]
    first = Screen(open_page(url), url)
    first.open_sample()
    first.actual_size()
    first.click(*CUP)
    cup = first.best(first.asked_at(*CUP))
    first.expect_mask(cup)

    second = Screen(first.page.context.new_page(), url)
    second.page.goto(url)
    second.page.locator("#shelf .sample").first.wait_for()
    assert not second.page.locator("#surface").is_visible(), "the first tab still has it"
    second.open_sample()
    second.actual_size()
    second.click(*SPOON)
    spoon = second.best(second.asked_at(*SPOON))
    second.press("n")
    second.click(*TABLE)
    table = second.best(second.asked_at(*TABLE))
    second.expect_mask(spoon | table)
    for screen, mask, count in ((first, cup, 1), (second, spoon | table, 2), (first, cup, 1)):
        screen.page.bring_to_front()
        screen.page.reload()
        screen.page.locator("#surface").wait_for()
        screen.actual_size()
        screen.expect_mask(mask)
        assert screen.rows.count() == count

    second.page.close()
    third = Screen(first.page.context.new_page(), url)  # takes up what the closed one has left
    third.page.goto(url)
    third.page.locator("#objects > li").nth(1).wait_for()
    third.actual_size()
    third.expect_mask(spoon | table)
    assert spoon.shape == COFFEE[::-1]
    wait_until(third.page, lambda: third.names() == ["Object 2", "Object 1"])
