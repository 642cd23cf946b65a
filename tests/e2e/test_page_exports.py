"""Every file that the page writes, read back with the libraries that people read such files with."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tests.e2e.browser import OpenPage
from tests.e2e.page_helpers import COFFEE, CUP, CUP_BOX, SPOON, TABLE, Mask, Screen
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton

Export = Callable[[str], Path]
NAMES = ["Tasse à café", "cell", "cell"]
COLOURS = ["#d00000", "#00a000", "#0000d0"]


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """Three objects, two of one name and two that overlap, and a fourth that is hidden."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    screen.click(*CUP)
    screen.drag(CUP_BOX[:2], CUP_BOX[2:])
    for place in (SPOON, TABLE):
        screen.press("n")
        screen.click(*place)
    page = screen.page
    for number in range(1, 5):
        page.get_by_label(f"Name of Object {number}").click()
        screen.row(f"Object {number}").locator(".facts", has_text="px").wait_for()
    page.get_by_role("button", name="Hide Object 4").click()
    for number, (name, colour) in enumerate(zip(NAMES, COLOURS, strict=True), 1):
        page.get_by_label(f"Colour of Object {number}").fill(colour)
        page.get_by_label(f"Name of Object {number}").fill(name)
        page.keyboard.press("Enter")
    assert screen.names() == ["Object 4", *reversed(NAMES)]
    return screen


@pytest.fixture
def masks(screen: Screen) -> list[Mask]:
    """Those of the three visible objects, by the API; the first lies at the bottom."""
    return [
        screen.best(screen.asked_at(*CUP)),
        screen.best(screen.question(box=CUP_BOX, multimask=False)),
        screen.best(screen.asked_at(*SPOON)),
    ]


@pytest.fixture
def export(screen: Screen, tmp_path: Path) -> Export:
    """Label of a button -> the file that it gave."""

    def export(label: str) -> Path:
        with screen.page.expect_download() as begun:
            screen.page.get_by_role("button", name=label).click()
        path = tmp_path / begun.value.suggested_filename
        begun.value.save_as(path)
        return path

    return export


def test_every_export_holds_the_apis_masks(screen: Screen, masks: list[Mask], export: Export) -> None:
    """One page for all of them: they are of the same objects.

    A canvas writes PNG only while the page is idle, which may be never here: no export waits for that.
    """
    screen.page.evaluate("() => (HTMLCanvasElement.prototype.toBlob = () => {})")
    check_masks(export("PNG masks"), masks)
    check_labels(export("Label image"), masks)
    check_coco(export("COCO JSON"), masks)
    check_polygons(export("GeoJSON"), masks)
    check_slide(export("Picture for a slide"), masks)
    assert not screen.page.locator(".notice").count()


def check_masks(path: Path, masks: list[Mask]) -> None:
    assert path.name == "coffee-masks.zip"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["Tasse à café.png", "cell.png", "cell-2.png"]
        for name, mask in zip(archive.namelist(), masks, strict=True):
            with Image.open(io.BytesIO(archive.read(name))) as picture:
                assert picture.mode == "L"
                np.testing.assert_array_equal(np.asarray(picture), np.where(mask, 255, 0))


def check_labels(path: Path, masks: list[Mask]) -> None:
    assert path.name == "coffee-labels.png"
    expected = np.zeros(COFFEE[::-1], np.uint8)
    for number, mask in enumerate(masks, 1):
        expected[mask] = number
    assert (masks[0] & masks[1]).any(), "somewhere the topmost must win"
    with Image.open(path) as picture:
        assert picture.mode == "L"
        np.testing.assert_array_equal(np.asarray(picture), expected)


def check_coco(path: Path, masks: list[Mask]) -> None:
    assert path.name == "coffee-coco.json"
    coco = COCO(str(path))
    (image,) = coco.loadImgs(coco.getImgIds())
    assert (image["file_name"], image["width"], image["height"]) == ("coffee.png", *COFFEE)
    annotations = coco.loadAnns(coco.getAnnIds())
    assert [coco.loadCats(one["category_id"])[0]["name"] for one in annotations] == NAMES
    for annotation, mask in zip(annotations, masks, strict=True):
        np.testing.assert_array_equal(coco.annToMask(annotation).astype(bool), mask)
        assert annotation["area"] == mask.sum()
        columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
        assert annotation["bbox"] == [
            columns[0],
            rows[0],
            columns[-1] - columns[0] + 1,
            rows[-1] - rows[0] + 1,
        ]
        assert 0 < annotation["score"] <= 1.1


def check_polygons(path: Path, masks: list[Mask]) -> None:
    assert path.name == "coffee-polygons.geojson"
    document = json.loads(path.read_bytes())
    assert document["type"] == "FeatureCollection"
    assert [feature["properties"]["name"] for feature in document["features"]] == NAMES
    for feature, mask, colour in zip(document["features"], masks, COLOURS, strict=True):
        geometry = feature["geometry"]
        polygons = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
        np.testing.assert_array_equal(even_odd([ring for rings in polygons for ring in rings]), mask)
        assert feature["properties"]["classification"]["color"] == list(bytes.fromhex(colour[1:]))


def even_odd(rings: list[list[list[float]]]) -> Mask:
    """[H,W]: each pixel's centre is inside where a ray to its left crosses the border an odd number of times."""
    inside = np.zeros(COFFEE[::-1], bool)
    for ring in rings:
        assert ring[0] == ring[-1], "a ring is closed"
        for (x0, y0), (x1, y1) in itertools.pairwise(ring):
            assert x0 == x1 or y0 == y1, "an exact border goes along pixels"
            if x0 == x1:
                inside[int(min(y0, y1)) : int(max(y0, y1)), int(x0) :] ^= True
    return inside


def check_slide(path: Path, masks: list[Mask]) -> None:
    assert path.name == "coffee-slide.png"
    with Image.open(path) as picture:
        pixels: npt.NDArray[Any] = np.asarray(picture.convert("RGB")).astype(int)
    width, height = COFFEE
    assert pixels.shape[1] == width
    assert height < pixels.shape[0] < height + 200, "names stand below"
    for mask, colour in zip(masks, COLOURS, strict=True):
        wanted = np.array(list(bytes.fromhex(colour[1:])))
        near = np.abs(pixels - wanted).max(axis=-1) <= 3
        assert near[:height][mask].any(), "its outline"
        assert near[height:].sum() > 50, "its square among the names"
    spoon = masks[2]
    assert pixels[:height][spoon][:, 2].mean() > pixels[:height][spoon][:, 0].mean(), "it is covered with blue"
