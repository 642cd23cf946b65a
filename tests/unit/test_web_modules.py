"""The page's own modules: their tests under node, and what they write as read by Python's libraries.

The modules read and write formats that others read: COCO, PNG, ZIP, GeoJSON. A test in JavaScript would compare the
writer with our own idea of the format only, so the readers that people use are asked here.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from tests.unit.node import run_node

WEB_TESTS = Path(__file__).resolve().parents[1] / "web"
Masks = npt.NDArray[np.bool_]


def areas_of(texts: list[dict[str, Any]]) -> list[int]:
    """Asked one by one, because pycocotools counts a list's masks in 8 bits here."""
    return [int(coco_mask.area(one)) for one in texts]


def noise(count: int, height: int, width: int) -> Masks:
    return np.random.default_rng([count, height, width]).random((count, height, width)) > 0.5


def discs(count: int, height: int, width: int) -> Masks:
    """Overlapping discs, each with a hole: what segmentation looks like, and a test of which label lies on top."""
    rows, columns = np.mgrid[:height, :width]
    random = np.random.default_rng(count)
    centres = random.random((count, 2)) * (height, width)
    distances = np.stack([np.hypot(rows - y, columns - x) for y, x in centres])
    radii = random.uniform(2, 30, (count, 1, 1))
    return (distances < radii) & (distances >= radii / 3)


def corners() -> Masks:
    """All, nothing, a pixel in each corner, a chessboard, and a diagonal, on one picture."""
    masks = np.zeros((5, 7, 9), np.bool_)
    masks[0] = True
    masks[2, [0, 0, -1, -1], [0, -1, 0, -1]] = True
    masks[3] = np.indices((7, 9)).sum(axis=0) % 2 == 0
    masks[4] = np.eye(7, 9, dtype=np.bool_)
    return masks


CASES = {
    "one pixel": noise(3, 1, 1),
    "one row": noise(4, 1, 57),
    "one column": noise(4, 43, 1),
    "noise": noise(6, 37, 53),
    "all, nothing and corners": corners(),
    "nothing": np.zeros((1, 5, 8), np.bool_),
    "discs": discs(20, 120, 90),
    "255 objects": discs(255, 40, 30),
    "256 objects": discs(256, 40, 30),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def masks(request: pytest.FixtureRequest) -> Masks:
    """[N,H,W] bool, the objects of one picture."""
    chosen: Masks = request.param
    return chosen


@pytest.fixture(scope="module")
def texts(masks: Masks) -> list[dict[str, Any]]:
    """The masks as pycocotools encodes them."""
    encoded = [coco_mask.encode(np.asfortranarray(mask.view(np.uint8))) for mask in masks]
    return [{"size": list(one["size"]), "counts": one["counts"].decode("ascii")} for one in encoded]


@pytest.fixture(scope="module")
def written(node: str, texts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the modules make of the masks."""
    answer: dict[str, Any] = json.loads(run_node(node, WEB_TESTS / "roundtrip.mjs", given=json.dumps({"masks": texts})))
    return answer


def pixels_of(png: str) -> tuple[str, npt.NDArray[Any]]:
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        assert picture.format == "PNG"
        return picture.mode, np.asarray(picture)


def rasterised(shape: tuple[int, int], geometry: dict[str, Any]) -> Masks:
    """Even-odd at pixel centres: each vertical edge turns over all pixels to its left."""
    polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
    inside = np.zeros(shape, np.bool_)
    for ring in (ring for polygon in polygons for ring in polygon):
        assert ring[0] == ring[-1]
        for (x0, y0), (x1, y1) in itertools.pairwise(ring):
            if x0 == x1:
                inside[min(y0, y1) : max(y0, y1), :x0] ^= True
    return inside


def signed_area(ring: list[list[int]]) -> float:
    x, y = np.array(ring).T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2)


def test_the_modules_own_tests(node: str) -> None:
    run_node(node, "--test", *sorted(WEB_TESTS.glob("*.test.js")))


def test_masks_as_pycocotools_has_them(written: dict[str, Any], texts: list[dict[str, Any]]) -> None:
    assert written["masks"] == texts
    assert written["areas"] == areas_of(texts)
    boxes = [box and [box["x"], box["y"], box["width"], box["height"]] for box in written["bounds"]]
    assert [box or [0, 0, 0, 0] for box in boxes] == coco_mask.toBbox(texts).tolist()
    assert [box is None for box in boxes] == [area == 0 for area in written["areas"]]


def test_coco_document_as_pycocotools_reads_it(written: dict[str, Any], masks: Masks, tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(written["coco"]))
    document = COCO(str(path))
    assert document.loadImgs(1)[0]["file_name"] == "Bild ä.png"
    annotations = document.loadAnns(document.getAnnIds(imgIds=[1], iscrowd=False))
    names = [category["name"] for category in document.loadCats([one["category_id"] for one in annotations])]
    assert names == [["cell", "débris"][index % 2] for index in range(len(masks))]
    np.testing.assert_array_equal(np.stack([document.annToMask(one) for one in annotations]), masks)
    segmentations = [one["segmentation"] for one in annotations]
    assert [one["area"] for one in annotations] == areas_of(segmentations)
    assert [one["bbox"] for one in annotations] == coco_mask.toBbox(segmentations).tolist()
    assert ["score" in one for one in annotations] == [index % 3 > 0 for index in range(len(masks))]


def test_pngs_as_pillow_reads_them(written: dict[str, Any], masks: Masks) -> None:
    for png, mask in zip(written["maskImages"], masks, strict=True):
        mode, pixels = pixels_of(png)
        assert mode == "L"
        np.testing.assert_array_equal(pixels, np.where(mask, 255, 0))
    labels = np.zeros(masks.shape[1:], np.int64)
    for index, mask in enumerate(masks):
        labels[mask] = index + 1
    mode, pixels = pixels_of(written["labels"])
    assert mode == ("L" if len(masks) <= 255 else "I;16")
    np.testing.assert_array_equal(pixels, labels)


def test_geojson_covers_the_masks(written: dict[str, Any], masks: Masks) -> None:
    features = written["geojson"]["features"]
    filled = [mask for mask in masks if mask.any()]
    for feature, mask in zip(features, filled, strict=True):
        geometry = feature["geometry"]
        np.testing.assert_array_equal(rasterised(mask.shape, geometry), mask)
        polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
        for outer, *holes in polygons:
            assert signed_area(outer) > 0
            assert all(signed_area(hole) < 0 for hole in holes)


def test_zip_as_python_reads_it(written: dict[str, Any]) -> None:
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(written["zip"]))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["coco ä.json", "masks/labels.png", "empty.txt"]
        assert json.loads(archive.read("coco ä.json")) == written["coco"]
        assert archive.read("masks/labels.png") == base64.b64decode(written["labels"])
        assert archive.read("empty.txt") == b""
        assert archive.infolist()[0].date_time >= (2024, 1, 1, 0, 0, 0)
