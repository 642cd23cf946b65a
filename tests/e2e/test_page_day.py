"""A day's work, acted out: twenty images, classes, imported boxes, a 16-bit TIFF, a reload, a restart, one ZIP.

Whatever was on the canvas is in the ZIP, as pycocotools, Pillow and shapely read it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import shapely
import shapely.geometry
import tifffile
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage, PageLog, serious_findings, wait_until
from tests.e2e.list_helpers import drop, expect_open, make_images
from tests.e2e.page_helpers import PATIENCE, Mask, Screen, picture_in
from tests.e2e.restartable import Restartable
from tests.e2e.test_page_imports import BOXES, coco_boxes
from triton_sam.core.masks import decode
from triton_sam.models.specs import ModelSpec

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
PHOTOGRAPHS = 19
#: Of the imported categories, and the third one, which is added by hand.
CELL, DEBRIS, NUCLEUS = 7, 3, 8
CLASS_KEYS = {CELL: "1", DEBRIS: "2", NUCLEUS: "3"}
WINDOW = (600, 3000)


@pytest.fixture
def server(repository: Path, spec: ModelSpec, tmp_path: Path) -> Iterator[Restartable]:
    running = Restartable(repository, spec, tmp_path / "home", embeddings=8)
    try:
        yield running
    finally:
        running.stop()


class Day:
    """The page, and what was seen on it: (class, mask) of each object, by image."""

    def __init__(self, page: Page, service: str, images: list[Path], ramp: Path) -> None:
        self.page = page
        self.screen = Screen(page, service)
        self.images = images
        self.ramp = ramp
        self.seen: dict[str, list[tuple[int, Mask]]] = {path.name: [] for path in [*images, ramp]}

    def show(self, name: str, picture: Image.Image) -> None:
        """The image is open, at 1:1, and nothing has been asked about it yet."""
        expect_open(self.page, name)
        self.screen.picture = picture
        self.screen.actual_size()

    def photograph(self, number: int) -> list[tuple[int, Mask]]:
        """Goes to photo-``number``; gives the list of what is seen on it."""
        path = self.images[number - 1]
        self.show(path.name, picture_in(path.read_bytes()))
        return self.seen[path.name]

    def next_image(self) -> None:
        self.screen.asked.clear()  # the next image may be asked the same, under another key
        self.screen.press("PageDown")

    def finish_image(self) -> None:
        """All objects are on the canvas, and the image is done."""
        self.expect_canvas()
        self.screen.press("d")
        self.next_image()

    def expect_canvas(self) -> None:
        name = self.page.locator("#picture-name").inner_text()
        self.screen.expect_mask(np.any([mask for _, mask in self.seen[name]], axis=0), exact=True)

    def click(self, kind: int, x: int, y: int) -> tuple[int, Mask]:
        """A new object of a class by its key."""
        self.screen.press("n")
        self.screen.press(CLASS_KEYS[kind])
        asked = self.screen.asked_at(*self.screen.click(x, y))
        self.expect_answer()
        return kind, self.screen.best(asked)

    def expect_answer(self) -> None:
        """The active object has its mask: a restarted server has been given the image again."""
        facts = self.page.locator("#objects > li.active .facts")
        wait_until(self.page, lambda: "px" in facts.inner_text(), PATIENCE)


def add_specks(path: Path) -> None:
    """Dark spots of 16 pixels on a bright area: holes that nobody wants."""
    with Image.open(path) as picture:
        pixels = np.array(picture.convert("RGB"))
    pixels[60:120, 90:150] = 230
    for y, x in ((70, 100), (75, 130), (105, 112)):
        pixels[y : y + 4, x : x + 4] = 0
    Image.fromarray(pixels).save(path)


def write_ramp(path: Path) -> np.ndarray[Any, Any]:
    """12 bits of a 16-bit TIFF: dark at the left, bright at the right, with a disc; gives its samples."""
    rows, columns = np.mgrid[:200, :300]
    samples = (500 + 8 * columns + 900 * (np.hypot(rows - 100, columns - 200) < 60)).astype(np.uint16)
    tifffile.imwrite(path, samples)
    return samples


@pytest.mark.timeout(600)
def test_a_day(
    server: Restartable, open_page: OpenPage, page_log: PageLog, photographs: Path, tmp_path: Path, axe: str
) -> None:
    page_log.expect("ERR_CONNECTION_REFUSED|WebSocket|Failed to fetch|net::ERR|status of (404|50)")  # of the restart
    images = make_images(photographs, tmp_path / "images", PHOTOGRAPHS)
    add_specks(images[5])
    ramp = tmp_path / "images" / "ramp.tif"
    samples = write_ramp(ramp)
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps(coco_boxes([path.name for path in images[:3]])))

    day = Day(open_page(server.url), server.url, images, ramp)
    page = day.page
    drop(page, [boxes, *images, ramp])
    day.screen.expect_notice("import", "Imported 6 boxes on 3 images.")
    page.locator("#images-count", has_text="0 of 20 done").wait_for(timeout=PATIENCE * 1000)
    page.get_by_role("button", name="Edit", exact=True).click()
    page.keyboard.type("nucleus")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")

    imported_boxes_are_corrected(day)
    classes_by_keys(day)
    expect_open(page, "photo-5.png")
    page.reload()
    expect_open(page, "photo-5.png")
    clicks_outlive_a_restart(day, server)
    masks_are_cleaned(day)
    for _ in range(7, PHOTOGRAPHS + 1):
        screen_name = page.locator("#picture-name").inner_text()
        day.next_image()
        wait_until(page, lambda before=screen_name: page.locator("#picture-name").inner_text() != before, PATIENCE)
    the_window_of_a_tiff(day, samples)
    assert page.locator("#images-count").inner_text() == "7 of 20 done"
    assert serious_findings(page, axe) == []
    check_archive(day, tmp_path)


def imported_boxes_are_corrected(day: Day) -> None:
    """Photographs 1 to 3: two boxes each; a click takes something away from the first object of the second one."""
    corners = [[x, y, x + width, y + height] for x, y, width, height in BOXES]
    for number in (1, 2, 3):
        seen = day.photograph(number)
        masks = [day.screen.best(day.screen.question(box=box, multimask=False)) for box in corners]
        if number == 2:
            day.page.get_by_label("Name of Object 1", exact=True).click()
            pixel = day.screen.click(60, 70, shift=True)
            masks[0] = day.screen.best(day.screen.question(points=[pixel], labels=[0], box=corners[0], multimask=False))
        seen.extend(zip((CELL, DEBRIS), masks, strict=True))
        day.finish_image()


def classes_by_keys(day: Day) -> None:
    """Photograph 4: an object of each class."""
    day.photograph(4).extend(
        [day.click(CELL, 60, 50), day.click(DEBRIS, 150, 100), day.click(NUCLEUS, 250, 150)],
    )
    day.finish_image()


def clicks_outlive_a_restart(day: Day, server: Restartable) -> None:
    """Photograph 5: a click while nobody answers has its mask when the server is back."""
    seen = day.photograph(5)
    seen.append(day.click(NUCLEUS, 60, 50))
    server.stop()
    day.page.locator("#status-connection:not([data-state=ready])").wait_for(timeout=PATIENCE * 1000)
    day.screen.asked.clear()
    day.screen.press("n")
    day.screen.press(CLASS_KEYS[CELL])
    place = day.screen.click(200, 120)
    day.screen.press("n")
    wait_until(day.page, lambda: day.screen.is_drawn("marks", *place))  # it is seen that something is waited for
    server.start()
    day.page.locator("#status-connection[data-state=ready]").wait_for(timeout=PATIENCE * 1000)
    day.page.get_by_label("Name of Object 2", exact=True).click()
    day.expect_answer()
    uploaded = day.screen.api.post("/v1/images", files={"image": day.images[4].read_bytes()}).json()
    seen.append((CELL, day.screen.best(day.screen.asked_at(*place) | {"image_key": uploaded["image_key"]})))
    day.finish_image()


def masks_are_cleaned(day: Day) -> None:
    """Photograph 6: with the slider at 0 the model's own mask, else one without small holes and islands."""
    seen = day.photograph(6)
    seen.append(day.click(DEBRIS, 120, 90))
    day.expect_canvas()
    slider = day.page.get_by_label("Clean up holes and islands smaller than")
    slider.focus()
    day.page.keyboard.press("Home")
    asked = day.screen.asked[-1]
    answer = day.screen.api.post("/v1/segment", json={name: asked[name] for name in asked if name != "id"}).json()
    best = max(answer["masks"], key=lambda row: float(row["score"]))
    assert not np.array_equal(decode(best), seen[0][1]), "nothing would be cleaned"
    day.screen.expect_mask(decode(best), exact=True)
    for _ in range(5):
        day.page.keyboard.press("ArrowRight")
    day.finish_image()


def the_window_of_a_tiff(day: Day, samples: np.ndarray[Any, Any]) -> None:
    """The model is given what the window shows."""
    expect_open(day.page, day.ramp.name)
    panel = day.page.locator("#contrast")
    panel.locator(".histogram").wait_for(timeout=PATIENCE * 1000)
    for label, value in zip(("Black", "White"), WINDOW, strict=True):
        with day.page.expect_response("**/v1/images", timeout=PATIENCE * 1000):
            panel.get_by_label(label, exact=True).fill(str(value))
            day.page.keyboard.press("Enter")
    low, high = WINDOW
    shown = np.floor(255 * np.clip((samples - float(low)) / (high - low), 0, 1) + 0.5).astype(np.uint8)
    day.show(day.ramp.name, Image.fromarray(shown).convert("RGB"))
    day.seen[day.ramp.name].append(day.click(CELL, 200, 100))
    day.expect_canvas()
    day.screen.press("d")


# -- what other programs read ---------------------------------------------------------------------------------------


def check_archive(day: Day, folder: Path) -> None:
    with day.page.expect_download(timeout=PATIENCE * 1000) as download:
        day.page.get_by_role("button", name="All images, in one ZIP").click()
    download.value.save_as(folder / "all.zip")
    with zipfile.ZipFile(folder / "all.zip") as archive:
        assert archive.testzip() is None
        archive.extractall(folder / "out")
    check_coco(day, COCO(str(folder / "out" / "coco.json")))
    for name, seen in day.seen.items():
        stem = Path(name).stem
        labels = np.zeros((200, 300), np.uint8)
        classes = np.zeros((200, 300), np.uint8)
        for number, (kind, mask) in enumerate(seen, 1):
            labels[mask] = number
            classes[mask] = kind
        for kind_of_image, expected in (("labels", labels), ("classes", classes)):
            with Image.open(folder / "out" / kind_of_image / f"{stem}.png") as picture:
                np.testing.assert_array_equal(np.asarray(picture), expected, f"{kind_of_image} of {name}")
        features = json.loads((folder / "out" / "geojson" / f"{stem}.geojson").read_text())["features"]
        assert len(features) == len(seen)
        for feature, (_, mask) in zip(features, seen, strict=True):
            np.testing.assert_array_equal(rasterised(feature["geometry"]), mask, f"polygons of {name}")


def check_coco(day: Day, coco: COCO) -> None:
    assert [(row["id"], row["name"]) for row in coco.loadCats(coco.getCatIds())] == [
        (CELL, "cell"),
        (DEBRIS, "debris"),
        (NUCLEUS, "nucleus"),
    ]
    images = coco.loadImgs(coco.getImgIds())
    assert [image["file_name"] for image in images] == list(day.seen)
    for image in images:
        rows = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
        seen = day.seen[image["file_name"]]
        assert [row["category_id"] for row in rows] == [kind for kind, _ in seen]
        for row, (_, mask) in zip(rows, seen, strict=True):
            np.testing.assert_array_equal(coco.annToMask(row).astype(bool), mask)


def rasterised(geometry: dict[str, Any]) -> Mask:
    """The pixels whose centres lie in the polygons."""
    shape = shapely.geometry.shape(geometry)
    assert shape.is_valid
    rows, columns = np.mgrid[:200, :300]
    return np.asarray(shapely.contains_xy(shape, columns + 0.5, rows + 0.5))
