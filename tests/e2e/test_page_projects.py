"""All images in one ZIP, read by the programs that people use; project files; and work of an older page."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.list_helpers import drop, expect_open, expect_rows, make_images
from tests.e2e.page_helpers import PATIENCE, Mask, Screen, picture_in
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
ROWS = ["photo-1.png: begun, 1 object", "photo-2.png: done, 1 object", "photo-3.png: untouched"]
#: What version 3 of the page has stored: two images, the older one with a painted object and an undo step.
VERSION_3 = """async () => {
  const file = await (await fetch("/samples/coffee")).blob();
  const opened = indexedDB.open("triton-sam", 3);
  opened.onupgradeneeded = () => {
    for (const store of ["index", "pictures", "work", "masks"]) opened.result.createObjectStore(store);
  };
  const database = await new Promise((resolve) => (opened.onsuccess = () => resolve(opened.result)));
  const transaction = database.transaction(["index", "pictures", "work", "masks"], "readwrite");
  const put = (store, value, key) => transaction.objectStore(store).put(value, key);
  const empty = { things: [], activeId: null, made: 0 };
  const thing = {
    id: "object-1", name: "Stripe", colour: "#aa5500", visible: true, points: [], box: null, pick: null, answer: null,
    added: 7, removed: null,
  };
  const worked = { things: [thing], activeId: "object-1", made: 1 };
  // Columns 100 to 199 of 600 x 400 pixels.
  put("masks", { width: 600, height: 400, runs: Uint32Array.of(40000, 40000, 160000) }, ["old", 7]);
  put("pictures", file, "old");
  put("work", { history: { past: [empty], present: worked, future: [] }, keys: {} }, "old");
  put("index", { name: "old.png", saved: 1000, hasWork: true }, "old");
  put("pictures", file, "new");
  put("work", { history: { past: [], present: empty, future: [] }, keys: {} }, "new");
  put("index", { name: "new.png", saved: 2000, hasWork: false }, "new");
  await new Promise((resolve) => (transaction.oncomplete = resolve));
  database.close();
}"""


def click(screen: Screen, path: Path, place: tuple[int, int]) -> Mask:
    """One object on the open image; gives its mask, which is on the canvas."""
    screen.picture = picture_in(path.read_bytes())
    screen.actual_size()
    pixel = screen.click(*place)
    mask = screen.best(screen.asked_at(*pixel))
    screen.expect_mask(mask, exact=True)
    screen.asked.clear()
    return mask


def exported(page: Page, button: str, path: Path) -> zipfile.ZipFile:
    with page.expect_download(timeout=PATIENCE * 1000) as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(path)
    return zipfile.ZipFile(path)


def check_for_others(archive: zipfile.ZipFile, masks: list[Mask], folder: Path) -> None:
    """What pycocotools, Pillow and json read is what was on the canvas."""
    assert archive.testzip() is None
    archive.extractall(folder)
    stems = ["photo-1", "photo-2", "photo-3"]
    of_each = [f"{kind}/{stem}" for stem in stems for kind in ("labels", "classes")]
    wanted = ["coco.json", "project.json", *(f"{name}.png" for name in of_each)]
    assert sorted(archive.namelist()) == sorted([*wanted, *(f"geojson/{stem}.geojson" for stem in stems)])
    coco = COCO(str(folder / "coco.json"))
    images = [(row["file_name"], row["width"], row["height"]) for row in coco.loadImgs(coco.getImgIds())]
    assert images == [(f"{stem}.png", 300, 200) for stem in stems]
    annotations = coco.loadAnns(coco.getAnnIds())
    assert [row["image_id"] for row in annotations] == [1, 2]
    assert [coco.loadCats(row["category_id"])[0]["name"] for row in annotations] == ["saucer", "Cup"]
    assert [row["name"] for row in coco.loadCats(coco.getCatIds())] == ["unused", "saucer", "Cup"]
    for row, mask in zip(annotations, masks, strict=True):
        np.testing.assert_array_equal(coco.annToMask(row).astype(bool), mask)
    numbers = [*(row["category_id"] for row in annotations), 0]
    for stem, mask, number in zip(stems, [*masks, np.zeros((200, 300), bool)], numbers, strict=True):
        with Image.open(folder / "classes" / f"{stem}.png") as classes:
            np.testing.assert_array_equal(np.asarray(classes), mask * np.uint8(number))
        with Image.open(folder / "labels" / f"{stem}.png") as labels:
            np.testing.assert_array_equal(np.asarray(labels), mask.astype(np.uint8))
        features = json.loads((folder / "geojson" / f"{stem}.geojson").read_text())["features"]
        assert len(features) == int(mask.any())


def check_shown(screen: Screen, masks: list[Mask]) -> None:
    """The list and the masks of the worked images, as they were."""
    expect_rows(screen.page, ROWS)
    expect_open(screen.page, "photo-1.png")
    screen.actual_size()
    screen.expect_mask(masks[0], exact=True)
    screen.press("PageDown")
    expect_open(screen.page, "photo-2.png")
    screen.actual_size()
    screen.expect_mask(masks[1], exact=True)
    assert screen.names() == ["Cup"]


def test_all_images_go_to_other_programs_and_to_other_browsers(
    server: RunningServer, open_page: OpenPage, photographs: Path, tmp_path: Path
) -> None:
    """Three images; an object on each of the first two, the second is done."""
    images = make_images(photographs, tmp_path / "images", 3)
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    page = screen.page
    drop(page, images)
    expect_rows(page, [f"photo-{number}.png: untouched" for number in (1, 2, 3)])
    page.get_by_role("button", name="Add classes").click()
    for name_of_class in ("unused", "saucer"):
        page.keyboard.type(name_of_class)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    masks = [click(screen, images[0], (150, 100))]
    screen.press("2")
    screen.press("PageDown")
    expect_open(page, "photo-2.png")
    screen.press("0")  # no class from here on
    masks.append(click(screen, images[1], (60, 50)))
    name = page.get_by_label("Name of Object 1")
    name.fill("Cup")
    name.press("Enter")
    screen.press("d")

    with exported(page, "All images, in one ZIP", tmp_path / "all.zip") as archive:
        check_for_others(archive, masks, tmp_path / "out")
    whole, slim = tmp_path / "whole.zip", tmp_path / "slim.zip"
    with exported(page, "Project file", whole) as archive:
        assert archive.read("images/photo-3.png") == images[2].read_bytes()
    page.get_by_label("With images").uncheck()
    with exported(page, "Project file", slim) as archive:
        assert archive.namelist() == ["project.json"]

    other = Screen(open_page(server.urls["service"]), server.urls["service"])
    drop(other.page, [whole])
    check_shown(other, masks)
    chips = other.page.locator("#class-chips .chip").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
    assert chips == ["unused", "saucer", "No class"]
    other.page.reload()
    expect_open(other.page, "photo-2.png")
    expect_rows(other.page, ROWS)
    wait_until(other.page, lambda: other.names() == ["Cup"])

    third = Screen(open_page(server.urls["service"]), server.urls["service"])
    drop(third.page, [slim])
    said = third.page.locator(".notice[data-kind=picture]")
    said.wait_for()
    assert "(photo-1.png, photo-2.png, photo-3.png)" in said.inner_text()
    drop(third.page, [slim, *images])
    check_shown(third, masks)


def test_work_of_version_3_of_the_page_becomes_a_list(server: RunningServer, open_page: OpenPage) -> None:
    url = server.urls["service"]
    page = open_page(f"{url}/app/icon.svg")
    page.evaluate(VERSION_3)
    page.goto(url)
    screen = Screen(page, url)
    expect_open(page, "new.png")
    expect_rows(page, ["old.png: begun, 1 object", "new.png: untouched"])
    screen.press("PageUp")
    expect_open(page, "old.png")
    screen.actual_size()
    stripe = np.zeros((400, 600), bool)
    stripe[:, 100:200] = True
    screen.expect_mask(stripe, exact=True)
    assert screen.names() == ["Stripe"]
    screen.press("Control+z")
    screen.expect_empty()
    screen.press("Control+y")
    screen.expect_mask(stripe, exact=True)


def test_a_second_tab_has_a_list_of_its_own_and_says_so(
    server: RunningServer, open_page: OpenPage, photographs: Path, tmp_path: Path
) -> None:
    first = open_page(server.urls["service"])
    drop(first, make_images(photographs, tmp_path, 2))
    both = ["photo-1.png: untouched", "photo-2.png: untouched"]
    expect_rows(first, both)
    second = first.context.new_page()
    second.goto(server.urls["service"])
    second.locator(".notice[data-kind=storage]", has_text="open in another tab").wait_for()
    assert second.locator("#surface").is_hidden()
    earlier = second.locator("#earlier-list").get_by_role("button", name="photo-1.png and 1 more", exact=True)
    second.get_by_role("button", name="Samples").click()
    earlier.click()
    second.locator(".notice[data-kind=kept]", has_text="open in another tab").wait_for()
    first.close()
    second.get_by_role("button", name="Samples").click()
    earlier.click()
    expect_open(second, "photo-1.png")
    expect_rows(second, both)
