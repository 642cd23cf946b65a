"""All images in one ZIP, read by the programs that people use; project files; and work of an older page."""

from __future__ import annotations

import io
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
PLACES = [(150, 100), (60, 50), (220, 150)]
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


def exported(page: Page, button: str) -> zipfile.ZipFile:
    with page.expect_download(timeout=PATIENCE * 1000) as download:
        page.get_by_role("button", name=button).click()
    return zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes()))


@pytest.fixture
def worked(
    server: RunningServer, open_page: OpenPage, photographs: Path, tmp_path: Path
) -> tuple[Screen, list[Path], list[Mask]]:
    """Three images; an object on each of the first two, the second is done."""
    images = make_images(photographs, tmp_path / "images", 3)
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    drop(screen.page, images)
    expect_rows(screen.page, [f"photo-{number}.png: untouched" for number in (1, 2, 3)])
    masks = [click(screen, images[0], PLACES[0])]
    screen.press("PageDown")
    expect_open(screen.page, "photo-2.png")
    masks.append(click(screen, images[1], PLACES[1]))
    name = screen.page.get_by_label("Name of Object 1")
    name.fill("Cup")
    name.press("Enter")
    screen.press("d")
    return screen, images, masks


ROWS = ["photo-1.png: begun, 1 object", "photo-2.png: done, 1 object", "photo-3.png: untouched"]


def test_one_zip_has_all_images_for_other_programs(
    worked: tuple[Screen, list[Path], list[Mask]], tmp_path: Path
) -> None:
    screen, _, masks = worked
    with exported(screen.page, "All images, in one ZIP") as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "out")
        stems = ["photo-1", "photo-2", "photo-3"]
        wanted = ["coco.json", "project.json", *(f"labels/{stem}.png" for stem in stems)]
        assert sorted(archive.namelist()) == sorted([*wanted, *(f"geojson/{stem}.geojson" for stem in stems)])
    coco = COCO(str(tmp_path / "out" / "coco.json"))
    rows = coco.loadImgs(coco.getImgIds())
    assert [(row["file_name"], row["width"], row["height"]) for row in rows] == [
        (f"{stem}.png", 300, 200) for stem in stems
    ]
    annotations = coco.loadAnns(coco.getAnnIds())
    assert [row["image_id"] for row in annotations] == [1, 2]
    assert [coco.loadCats(row["category_id"])[0]["name"] for row in annotations] == ["object", "Cup"]
    for row, mask in zip(annotations, masks, strict=True):
        np.testing.assert_array_equal(coco.annToMask(row).astype(bool), mask)
    for stem, mask in zip(stems, [*masks, np.zeros((200, 300), bool)], strict=True):
        with Image.open(tmp_path / "out" / "labels" / f"{stem}.png") as labels:
            np.testing.assert_array_equal(np.asarray(labels), mask.astype(np.uint8))
        features = json.loads((tmp_path / "out" / "geojson" / f"{stem}.geojson").read_text())["features"]
        assert len(features) == int(mask.any())


def test_a_project_file_is_the_same_work_in_another_browser(
    worked: tuple[Screen, list[Path], list[Mask]], server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    screen, images, masks = worked
    project = tmp_path / "work.zip"
    with exported(screen.page, "Project file") as archive:
        assert archive.read("images/photo-3.png") == images[2].read_bytes()
        assert archive.fp is not None
        archive.fp.seek(0)
        project.write_bytes(archive.fp.read())
    other = Screen(open_page(server.urls["service"]), server.urls["service"])
    drop(other.page, [project])
    expect_rows(other.page, ROWS)
    expect_open(other.page, "photo-1.png")
    other.actual_size()
    other.expect_mask(masks[0], exact=True)
    other.press("PageDown")
    expect_open(other.page, "photo-2.png")
    other.actual_size()
    other.expect_mask(masks[1], exact=True)
    assert other.names() == ["Cup"]
    other.page.reload()
    expect_open(other.page, "photo-2.png")
    expect_rows(other.page, ROWS)
    wait_until(other.page, lambda: other.names() == ["Cup"])


def test_a_project_file_without_images_finds_them_in_the_list(
    worked: tuple[Screen, list[Path], list[Mask]], server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    screen, images, masks = worked
    screen.page.get_by_label("With images").uncheck()
    project = tmp_path / "work.zip"
    with exported(screen.page, "Project file") as archive:
        assert archive.namelist() == ["project.json"]
        assert archive.fp is not None
        archive.fp.seek(0)
        project.write_bytes(archive.fp.read())
    other = Screen(open_page(server.urls["service"]), server.urls["service"])
    drop(other.page, [project])
    said = other.page.locator(".notice[data-kind=picture]")
    said.wait_for()
    assert "photo-1.png, photo-2.png, photo-3.png" in said.inner_text()
    drop(other.page, [project, *images])
    expect_rows(other.page, ROWS)
    other.actual_size()
    other.expect_mask(masks[0], exact=True)
    other.press("Control+z")
    other.expect_empty()


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
    worked: tuple[Screen, list[Path], list[Mask]], server: RunningServer
) -> None:
    screen, _, _ = worked
    second = screen.page.context.new_page()
    second.goto(server.urls["service"])
    second.locator(".notice[data-kind=storage]", has_text="open in another tab").wait_for()
    assert second.locator("#surface").is_hidden()
    second.get_by_role("button", name="Samples").click()
    second.locator("#earlier-list").get_by_role("button", name="photo-2.png and 2 more", exact=True).click()
    second.locator(".notice[data-kind=kept]", has_text="open in another tab").wait_for()
    screen.page.close()
    second.get_by_role("button", name="Samples").click()
    second.locator("#earlier-list").get_by_role("button", name="photo-2.png and 2 more", exact=True).click()
    expect_open(second, "photo-2.png")
    expect_rows(second, ROWS)
