"""Classes: chosen by keys, kept, edited, and in every export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage, serious_findings, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, SPOON, TABLE, Mask, Screen
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
NAMES = ["cup", "Löffel", "table"]


def colours(page: Page) -> list[str]:
    """Of the classes, in their order."""
    found: list[str] = page.locator("#class-rows .swatch").evaluate_all("(all) => all.map(({ value }) => value)")
    return found


def chosen_class(page: Page) -> str:
    return page.locator("#class-chips [aria-checked=true]").get_attribute("aria-label") or ""


def exported(screen: Screen, label: str, folder: Path) -> Path:
    with screen.page.expect_download() as begun:
        screen.page.get_by_role("button", name=label, exact=True).click()
    path = folder / begun.value.suggested_filename
    begun.value.save_as(path)
    return path


def test_three_classes_by_keys(server: RunningServer, open_page: OpenPage, tmp_path: Path, axe: str) -> None:
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    screen.press("1")
    screen.expect_notice("classes", "There is no class 1")
    page.get_by_role("button", name="Add classes").click()
    for name in NAMES:
        page.keyboard.type(name)
        page.keyboard.press("Enter")
    assert page.locator("#class-rows .name").evaluate_all("(all) => all.map(({ value }) => value)") == NAMES
    assert serious_findings(page, axe) == []
    page.keyboard.press("Escape")
    screen.expect_no_notice("classes")
    masks = [work_on(screen, key, place) for key, place in (("1", CUP), ("2", SPOON), ("3", TABLE))]
    assert chosen_class(page) == "table"
    screen.press("2")  # the active object is another after all
    assert page.get_by_label("Class of Object 3").evaluate("(one) => one.selectedOptions[0].text") == "Löffel"
    screen.press("Control+z")
    assert page.get_by_label("Class of Object 3").evaluate("(one) => one.selectedOptions[0].text") == "table"
    cup, spoon, table = shades = colours(page)
    screen.expect_objects(*zip(masks, shades, strict=True))

    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Colour of cup").fill("#123456")
    page.get_by_role("button", name="Move table up").click()
    page.get_by_role("button", name="Delete class Löffel").click()
    page.get_by_text("Löffel was deleted. 1 object of this image has no class now.").wait_for()
    assert page.locator("#class-rows li").count() == 2
    page.get_by_role("button", name="Undo", exact=True).and_(page.locator("#undo-class")).click()
    page.get_by_label("Name of class Löffel").fill("spoon")
    page.keyboard.press("Escape")
    screen.expect_objects((masks[0], "#123456"), (masks[1], spoon), (masks[2], table))
    assert cup != "#123456"

    page.reload()
    wait_until(page, lambda: screen.rows.count() == 3)
    assert page.locator("#class-chips .chip").evaluate_all("(all) => all.map((one) => one.ariaLabel)") == [
        "cup",
        "table",
        "spoon",
        "No class",
    ]
    screen.expect_objects((masks[0], "#123456"), (masks[1], spoon), (masks[2], table))
    assert serious_findings(page, axe) == []
    check_exports(screen, masks, tmp_path)


def work_on(screen: Screen, key: str, place: tuple[int, int]) -> Mask:
    """A new object of a class; gives its mask."""
    screen.press("n")
    screen.press(key)
    return screen.best(screen.asked_at(*screen.click(*place)))


def check_exports(screen: Screen, masks: list[Mask], folder: Path) -> None:
    """Numbers are those of the order in which the classes were made."""
    coco = COCO(str(exported(screen, "COCO JSON", folder)))
    assert [(row["id"], row["name"]) for row in coco.loadCats(coco.getCatIds())] == [
        (1, "cup"),
        (3, "table"),
        (2, "spoon"),
    ]
    rows = coco.loadAnns(coco.getAnnIds())
    assert [row["category_id"] for row in rows] == [1, 2, 3]
    for row, mask in zip(rows, masks, strict=True):
        np.testing.assert_array_equal(coco.annToMask(row).astype(bool), mask)
    expected = np.zeros(COFFEE[::-1], np.uint8)
    for number, mask in enumerate(masks, 1):
        expected[mask] = number
    with Image.open(exported(screen, "Class image", folder)) as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected)
        meaning = json.loads(picture.info["labels"])
    assert meaning == {"1": {"class": "cup"}, "3": {"class": "table"}, "2": {"class": "spoon"}}
    polygons = json.loads(exported(screen, "GeoJSON", folder).read_bytes())
    assert [one["properties"]["class"] for one in polygons["features"]] == ["cup", "spoon", "table"]
