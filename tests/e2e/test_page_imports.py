"""Annotations from files: boxes become prompts, masks come and go exactly as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.list_helpers import drop, expect_open, expect_rows, make_images
from tests.e2e.page_helpers import Mask, Screen, picture_in
from tests.e2e.test_page_classes import exported
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
SIZE = (300, 200)
BOXES = [[20, 30, 90, 80], [150.5, 60, 100, 110.25]]
CATEGORIES = [{"id": 7, "name": "cell"}, {"id": 3, "name": "debris"}]


def coco_boxes(names: list[str]) -> dict[str, Any]:
    """Two boxes on each image."""
    images = [
        {"id": n, "file_name": f"train/{name}", "width": SIZE[0], "height": SIZE[1]} for n, name in enumerate(names)
    ]
    rows = [(image["id"], box, (7, 3)[at]) for image in images for at, box in enumerate(BOXES)]
    annotations = [
        {"id": n, "image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for n, (image, box, category) in enumerate(rows, 1)
    ]
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def choose_file(page: Page, path: Path) -> None:
    page.locator("#import-file").set_input_files(path)


def test_boxes_of_several_images(server: RunningServer, open_page: OpenPage, photographs: Path, tmp_path: Path) -> None:
    images = make_images(photographs, tmp_path, 3, SIZE)
    document = tmp_path / "boxes.json"
    names = [path.name for path in images]
    document.write_text(json.dumps(coco_boxes([*names, "elsewhere.png"])))
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    drop(page, [document, *images])
    expect_rows(page, [f"{name}: begun, 2 objects" for name in names])
    screen.expect_notice("import", "Imported 6 boxes on 3 images.")
    screen.expect_notice("import", "1 image is not in the list: train/elsewhere.png.")
    expect_open(page, names[0])
    expect_boxes(screen, images[0])
    assert len(screen.asked) == 2, "only the open image's boxes are sent"
    exported(screen, "All images, in one ZIP", tmp_path)
    screen.expect_notice("export", f"4 objects have no mask yet and are not in the file. Open {names[1]}, {names[2]}")
    screen.press("PageDown")
    expect_open(page, names[1])
    expect_boxes(screen, images[1])
    screen.press("Control+z")
    wait_until(page, lambda: screen.rows.count() == 0)
    screen.expect_empty()
    assert page.locator("#class-chips .chip").evaluate_all("(all) => all.map((one) => one.ariaLabel)") == [
        "cell",
        "debris",
        "No class",
    ]


def expect_boxes(screen: Screen, path: Path) -> None:
    """The masks of both boxes are on the canvas."""
    screen.picture = picture_in(path.read_bytes())
    screen.actual_size()
    corners = [[x, y, x + width, y + height] for x, y, width, height in BOXES]
    first, second = (screen.best(screen.question(box=box, multimask=False)) for box in corners)
    screen.expect_mask(first | second)
    screen.asked[:] = screen.asked[-2:]


def random_masks(count: int) -> list[Mask]:
    """Discs that do not overlap, with holes and islands: what a label image can hold."""
    width, height = SIZE
    rows, columns = np.mgrid[:height, :width]
    random = np.random.default_rng(count)
    labels = np.zeros((height, width), np.uint16)
    for number in range(1, count + 1):
        x, y, radius = random.uniform(0, width), random.uniform(0, height), random.uniform(4, 25)
        distance = np.hypot(rows - y, columns - x)
        labels[(distance < radius) & ((distance > radius / 3) | (random.random((height, width)) > 0.8))] = number
    return [labels == number for number in np.unique(labels) if number]


def label_image(masks: list[Mask]) -> npt.NDArray[np.uint16]:
    labels = np.zeros(SIZE[::-1], np.uint16)
    for number, mask in enumerate(masks, 1):
        labels[mask] = number * 300
    return labels


def test_masks_survive_every_format(
    server: RunningServer, open_page: OpenPage, photographs: Path, tmp_path: Path
) -> None:
    """A label image of 16 bits -> GeoJSON -> label image -> COCO: always the same masks."""
    (image,) = make_images(photographs, tmp_path, 1, SIZE)
    masks = random_masks(12)
    labels = tmp_path / "photo-1_labels.png"
    Image.fromarray(label_image(masks)).save(labels)
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    drop(page, [labels, image])
    screen.expect_notice("import", f"Imported {len(masks)} masks on 1 image.")
    screen.actual_size()
    screen.expect_mask(np.any(masks, axis=0), exact=True)
    for label in ("GeoJSON", "Label image", "COCO JSON"):
        path = exported(screen, label, tmp_path)
        screen.press("Control+z")
        wait_until(page, lambda: screen.rows.count() == 0)
        choose_file(page, path)
        wait_until(page, lambda: screen.rows.count() == len(masks))
    coco = COCO(str(exported(screen, "COCO JSON", tmp_path)))
    found = [coco.annToMask(row).astype(bool) for row in coco.loadAnns(coco.getAnnIds())]
    np.testing.assert_array_equal(found, masks)

    # Clicks on an imported mask: one takes away what the model finds there, and the rest stays.
    page.get_by_label("Name of Object 1", exact=True).click()
    row, column = np.argwhere(masks[0])[len(np.argwhere(masks[0])) // 2]
    screen.asked.clear()
    screen.picture = picture_in(image.read_bytes())
    pixel = screen.click(int(column), int(row), shift=True)
    taken = screen.best(screen.asked_at(*pixel))
    screen.expect_mask((masks[0] & ~taken) | np.any(masks[1:], axis=0), exact=True)

    # The service reads a TIFF: every object is there a second time.
    tiff = tmp_path / "photo-1_seg.tif"
    Image.fromarray(label_image(masks)).save(tiff)
    choose_file(page, tiff)
    wait_until(page, lambda: screen.rows.count() == 2 * len(masks))
    screen.expect_mask(np.any(masks, axis=0), exact=True)

    other = tmp_path / "photo-1_masks.png"
    Image.fromarray(np.ones((5, 4), np.uint8)).save(other)
    choose_file(page, other)
    screen.expect_notice("import", "photo-1_masks.png has 4 x 5 pixels and photo-1.png 300 x 200")
