"""Many images at once: none is lost, all is kept, and the next one is ready before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, PageLog, serious_findings, wait_until
from tests.e2e.list_helpers import drop, expect_open, expect_rows, make_images, rows
from tests.e2e.page_helpers import PATIENCE, Screen, picture_in
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
#: A place on each of the images.
PLACE = (150, 100)


def posts(traffic: Traffic) -> int:
    return traffic.requests.count("POST /v1/images")


def click_and_expect(screen: Screen, path: Path) -> None:
    """One object, whose mask is on the canvas."""
    screen.picture = picture_in(path.read_bytes())
    screen.actual_size()
    pixel = screen.click(*PLACE)
    screen.expect_mask(screen.best(screen.asked_at(*pixel)))
    screen.asked.clear()  # the next image is asked the same, under another key


def test_of_twelve_dropped_files_each_is_there_or_is_named(
    server: RunningServer,
    open_page: OpenPage,
    page_log: PageLog,
    traffic: Callable[[Page], Traffic],
    photographs: Path,
    tmp_path: Path,
    axe: str,
) -> None:
    page_log.expect("400")  # the service cannot read the broken file either
    images = make_images(photographs, tmp_path, 10)
    broken, text = tmp_path / "photo-11.png", tmp_path / "notes.txt"
    broken.write_bytes(images[0].read_bytes()[:200])
    text.write_text("not an image")
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    drop(page, [text, *reversed(images), broken])
    names = [path.name for path in images]
    expect_rows(page, [f"{name}: untouched" for name in names])
    expect_open(page, "photo-1.png")
    notice = page.locator(".notice[data-kind=added]")
    notice.wait_for()
    said = notice.inner_text()
    assert said.startswith("2 of 12 files were not added.")
    assert "notes.txt: This is not an image" in said
    assert "photo-11.png: " in said
    assert serious_findings(page, axe) == []
    wait_until(page, lambda: page.locator("#image-rows img").count() == len(images), PATIENCE)

    # Work on the first, then to the next, which was encoded meanwhile: one upload an image.
    click_and_expect(screen, images[0])
    wait_until(page, lambda: posts(traffic(page)) == 2, PATIENCE)
    screen.press("PageDown")
    expect_open(page, "photo-2.png")
    click_and_expect(screen, images[1])
    screen.press("d")
    screen.press("PageDown")
    expect_open(page, "photo-3.png")
    wait_until(page, lambda: posts(traffic(page)) == 4, PATIENCE)
    screen.press("PageUp")
    expect_open(page, "photo-2.png")
    page.get_by_role("button", name="Image before").click()
    expect_open(page, "photo-1.png")
    labels = [f"{name}: untouched" for name in names]
    labels[:2] = ["photo-1.png: begun, 1 object", "photo-2.png: done, 1 object"]
    expect_rows(page, labels)
    assert page.locator("#images-count").inner_text() == "1 of 10 done"

    # A reload in the middle keeps the list, the statuses, the open image, the work and the undo steps.
    screen.press("PageDown")
    expect_open(page, "photo-2.png")
    page.reload()
    expect_open(page, "photo-2.png")
    expect_rows(page, labels)
    assert page.get_by_role("button", name="Done", exact=True).get_attribute("aria-pressed") == "true"
    assert screen.names() == ["Object 1"]
    screen.press("Control+z")
    wait_until(page, lambda: screen.names() == [])
    assert posts(traffic(page)) <= 4, "keys are kept with the images"


def test_a_folder_is_a_list_of_which_only_the_visible_rows_are_in_the_page(
    server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    folder = tmp_path / "scans"
    for number in range(1, 61):
        path = folder / ("second/plate.png" if number == 60 else f"plate-{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 32), (4 * number, 255 - 4 * number, 90)).save(path)
    (folder / ".DS_Store").write_text("of the system")
    page = open_page(server.urls["service"])
    page.locator("#folder").set_input_files(folder)
    wait_until(page, lambda: page.locator("#images-count").inner_text() == "0 of 60 done", PATIENCE)
    expect_open(page, "plate-1.png")
    assert page.locator(".notice[data-kind=added]").count() == 0
    assert 5 < page.locator("#image-rows [role=option]").count() < 30

    # The keyboard in the list: to its end, which is scrolled to, and opened.
    page.locator("#image-rows").focus()
    page.keyboard.press("End")
    wait_until(page, lambda: rows(page)[-1:] == ["second/plate.png: untouched"])
    assert 5 < page.locator("#image-rows [role=option]").count() < 30
    page.keyboard.press("Enter")
    expect_open(page, "second/plate.png")
    page.keyboard.press("PageUp")
    expect_open(page, "plate-59.png")
    cursor = page.locator("#image-rows .cursor .image-name")
    wait_until(page, lambda: cursor.all_inner_texts() == ["plate-59.png"])
