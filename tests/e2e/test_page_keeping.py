"""Work on one image outlives the next image, however it comes; and what a hand does by mistake costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.browser import OpenPage, PageLog
from tests.e2e.list_helpers import expect_rows
from tests.e2e.page_helpers import CUP, SPOON, TABLE, Screen
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.triton

#: The browser cannot show the first image that it is given, and the service refuses to convert it.
FAIL_ONCE = """
  const decode = window.createImageBitmap;
  window.createImageBitmap = () => {
    window.createImageBitmap = decode;
    return Promise.reject(new Error("not now"));
  };
"""


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample with a spoon on it."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    screen.click(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)))
    return screen


def take_sample(page: Page, name: str) -> None:
    page.get_by_role("button", name="Samples").click()
    page.locator(f"#samples-list [data-sample={name}]").click()


def shown(page: Page, file: str) -> None:
    page.locator("#picture-name", has_text=file).wait_for()


def test_the_image_before_is_in_the_list_and_is_gone_back_to(screen: Screen) -> None:
    page = screen.page
    assert page.locator("#images").is_hidden(), "one image needs no list"
    take_sample(page, "cells")
    shown(page, "cells.jpg")
    assert screen.names() == []
    take_sample(page, "cat")
    shown(page, "cat.png")
    expect_rows(
        page, ["coffee.png: begun, 1 object", "cat.png: untouched"]
    )  # without the cells, which nobody worked on
    screen.press("PageUp")
    shown(page, "coffee.png")
    screen.actual_size()
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)))
    assert page.get_by_role("button", name="Undo").is_enabled()


def test_an_earlier_list_is_found_again_after_a_reload_and_is_deleted_by_hand(screen: Screen) -> None:
    page = screen.page
    take_sample(page, "cat")
    shown(page, "cat.png")
    page.get_by_role("button", name="Change the list").click()
    page.get_by_role("button", name="New list").click()
    page.locator("#welcome").wait_for()
    assert page.locator("#surface").is_hidden()
    assert page.title() == "triton-sam"
    page.locator("#shelf [data-sample=cells]").click()
    shown(page, "cells.jpg")
    page.reload()
    shown(page, "cells.jpg")
    page.get_by_role("button", name="Samples").click()
    page.locator("#earlier-list").get_by_role("button", name="cat.png and 1 more", exact=True).click()
    shown(page, "cat.png")
    expect_rows(page, ["coffee.png: begun, 1 object", "cat.png: untouched"])
    screen.press("PageUp")
    shown(page, "coffee.png")
    screen.actual_size()
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)))
    page.get_by_role("button", name="Samples").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete cells.jpg").click()
    page.locator("#earlier").wait_for(state="hidden")


def test_removed_images_come_back(screen: Screen) -> None:
    page = screen.page
    take_sample(page, "cat")
    shown(page, "cat.png")
    page.get_by_role("button", name="Change the list").click()
    page.get_by_role("button", name="Remove all images").click()
    page.locator("#welcome").wait_for()
    page.get_by_role("button", name="Undo", exact=True).and_(page.locator(".notice button")).click()
    expect_rows(page, ["coffee.png: begun, 1 object", "cat.png: untouched"])
    shown(page, "coffee.png")
    page.locator("#image-rows").focus()
    page.keyboard.press("Delete")
    shown(page, "cat.png")
    page.reload()
    shown(page, "cat.png")
    assert page.locator("#images").is_hidden()


def test_what_is_made_while_the_next_image_comes_is_kept(server: RunningServer, open_page: OpenPage) -> None:
    """The image before had nothing when the next one was asked for."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    waiting: list[Route] = []
    screen.page.route("**/samples/cat", lambda route: waiting.append(route))
    take_sample(screen.page, "cat")
    screen.click(*TABLE)
    screen.expect_mask(screen.best(screen.asked_at(*TABLE)))
    for route in waiting:
        route.continue_()
    shown(screen.page, "cat.png")
    screen.press("PageUp")
    shown(screen.page, "coffee.png")
    assert screen.names() == ["Object 1"]


def test_work_that_cannot_be_shown_is_not_overwritten(screen: Screen, page_log: PageLog) -> None:
    page_log.expect("400")
    page = screen.page
    page.add_init_script(FAIL_ONCE)
    refusal = {"error": {"code": "invalid_input", "message": "this image is broken"}}
    page.route("**/v1/preview", lambda route: route.fulfill(status=400, json=refusal))
    page.reload()
    page.locator(".notice[data-kind=picture]").wait_for()
    take_sample(page, "cat")
    shown(page, "cat.png")
    expect_rows(page, ["coffee.png: begun, 1 object", "cat.png: untouched"])


def test_enter_on_undo_once_too_often_clicks_nothing(screen: Screen) -> None:
    page = screen.page
    page.get_by_role("button", name="Undo").focus()
    for _ in range(5):
        page.keyboard.press("Enter")
    screen.expect_empty()
    assert screen.names() == []
    page.keyboard.press("Control+Shift+z")
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)))


def test_alt_and_a_click_choose_the_object_there(screen: Screen) -> None:
    page = screen.page
    screen.press("n")
    screen.click(*CUP)
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)) | screen.best(screen.asked_at(*CUP)))
    assert page.locator("#objects > li.active .name").input_value() == "Object 2"
    page.keyboard.down("Alt")
    page.mouse.click(*screen.view.place(*SPOON))
    page.keyboard.up("Alt")
    assert page.locator("#objects > li.active .name").input_value() == "Object 1"
    assert screen.names() == ["Object 2", "Object 1"]
