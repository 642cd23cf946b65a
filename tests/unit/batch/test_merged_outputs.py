"""COCO and GeoJSON of a whole job, read back by the tools that people use."""

from __future__ import annotations

import contextlib
import io
import json
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO
from shapely import contains_xy
from shapely.geometry import shape

from tests.unit.batch.made_results import FACTS, HOSTILE, disk, mask_lists, record_of, result_of
from triton_sam.batch.outputs.facts import JobFacts
from triton_sam.batch.outputs.merge import write_outputs
from triton_sam.batch.records import Item, ItemResult, MaskRecord
from triton_sam.core.rle import BoolArray

BOTH = ("coco", "geojson")


def merged(folder: Path, results: Sequence[ItemResult], facts: JobFacts = FACTS) -> tuple[Any, Any]:
    """The COCO document and the GeoJSON of these results."""
    write_outputs(folder, BOTH, iter(results), facts)
    return tuple(json.loads((folder / name).read_bytes()) for name in ("annotations.json", "masks.geojson"))  # type: ignore[return-value]


def read_by_pycocotools(path: Path) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(path))


@given(images=st.lists(mask_lists(), max_size=3))
def test_masks_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, images: list[list[BoolArray]]) -> None:
    folder = tmp_path_factory.mktemp("job")
    results = [
        result_of([record_of(mask) for mask in masks], *(masks[0].shape[::-1] if masks else (4, 4)), index)
        for index, masks in enumerate(images)
    ]

    _, features = merged(folder, results)

    coco = read_by_pycocotools(folder / "annotations.json")
    assert [coco.imgs[number]["file_name"] for number in coco.getImgIds()] == [one.item.name for one in results]
    shapes = {one["properties"]["id"]: shape(one["geometry"]) for one in features["features"]}
    number = 0
    for image_id, masks in enumerate(images, 1):
        found = coco.loadAnns(coco.getAnnIds(image_id))
        assert len(found) == len(masks)
        for mask, annotation in zip(masks, found, strict=True):
            number += 1
            assert annotation["id"] == number
            np.testing.assert_array_equal(coco.annToMask(annotation), mask)
            assert annotation["area"] == mask.sum()
            if mask.any():
                geometry = shapes.pop(number)
                assert geometry.is_valid
                rows, columns = np.mgrid[: mask.shape[0], : mask.shape[1]]
                np.testing.assert_array_equal(contains_xy(geometry, columns + 0.5, rows + 0.5), mask)
    assert not shapes, "an empty mask has no geometry"


def test_a_coco_document(tmp_path: Path) -> None:
    extra = {"predicted_iou": 0.9, "stability_score": 0.9712345, "point_coords": [[3.5, 4.0]], "id": 77}
    mask = record_of(disk(20, 10, 8, 4, 3), 0.1 + 0.2, extra=extra)

    document, _ = merged(tmp_path, [result_of([mask], 20, 10, 4)], replace(FACTS, clean=64))

    assert list(document) == ["info", "licenses", "images", "annotations", "categories"]
    assert document["info"] == {
        "description": "Segmented with triton-sam 0.1.0",
        "clean": {"holes": 64, "islands": 64},
    }
    assert document["images"] == [{"id": 5, "file_name": "image_4.png", "width": 20, "height": 10}]
    assert document["annotations"] == [
        {
            "predicted_iou": 0.9,
            "stability_score": 0.9712345,
            "point_coords": [[3.5, 4]],
            "id": 1,
            "image_id": 5,
            "category_id": 1,
            "segmentation": mask.segmentation,
            "area": mask.area,
            "bbox": [5, 1, 7, 7],
            "iscrowd": 0,
            "score": 0.1 + 0.2,
        }
    ]
    assert b'"bbox":[5,1,7,7]' in (tmp_path / "annotations.json").read_bytes()
    assert document["categories"] == [{"id": 1, "name": "object", "supercategory": "object"}]


def test_annotations_are_results_for_pycocotools(tmp_path: Path) -> None:
    document, _ = merged(tmp_path, [result_of([record_of(disk(20, 10, 8, 4, 3))], 20, 10)])
    coco = read_by_pycocotools(tmp_path / "annotations.json")

    with contextlib.redirect_stdout(io.StringIO()):
        found = coco.loadRes(document["annotations"])

    np.testing.assert_array_equal(found.annToMask(found.anns[1]), disk(20, 10, 8, 4, 3))


def test_ids_of_a_coco_file_stay(tmp_path: Path) -> None:
    mask = record_of(disk(8, 8, 4, 4, 3))
    crowd = 900_100_581_799  # the greatest of COCO 2017
    results = [
        result_of([replace(mask, annotation_id=crowd, category_id=18)], 8, 8, 0, item={"image_id": 2}),
        result_of([replace(mask, annotation_id=5, category_id=1), mask], 8, 8, 1),
        result_of([replace(mask, annotation_id=7, category_id=18)], 8, 8, 2, item={"image_id": 3}),
    ]
    categories = [{"id": 1, "name": "person", "supercategory": "x"}, {"id": 18, "name": "dog", "keypoints": ["nose"]}]

    document, features = merged(tmp_path, results, replace(FACTS, categories=categories, from_coco=True))

    beyond = 2**40
    assert [image["id"] for image in document["images"]] == [2, beyond + 2, 3]
    found = [(one["image_id"], one["id"], one["category_id"]) for one in document["annotations"]]
    assert found == [(2, crowd, 18), (beyond + 2, 5, 1), (beyond + 2, beyond + 1, 19), (3, 7, 18)]
    assert document["categories"] == [*categories, {"id": 19, "name": "object", "supercategory": "object"}]
    shown = [one["properties"] for one in features["features"]]
    assert [(one["image_id"], one["id"]) for one in shown] == [pair[:2] for pair in found]
    assert [one["category"] for one in shown] == ["dog", "person", "object", "dog"]
    assert [one["class"] for one in shown] == ["dog", "person", None, "dog"]


def test_no_id_is_given_twice(tmp_path: Path) -> None:
    """Pages of one file have the image and the annotations of one entry in the COCO file."""
    mask = record_of(disk(8, 8, 4, 4, 3), annotation_id=2)
    results = [
        result_of(
            [mask, replace(mask, annotation_id=None)],
            8,
            8,
            index,
            f"stack.tif[{index}]",
            {"image_id": 1, "page": index},
        )
        for index in range(3)
    ]

    for from_coco in (True, False):
        document, _ = merged(tmp_path, results, replace(FACTS, from_coco=from_coco))

        images = [image["id"] for image in document["images"]]
        annotations = [one["id"] for one in document["annotations"]]
        assert (len(set(images)), len(set(annotations))) == (3, 6)
        assert (images[0], annotations[0]) == (1, 2)
        assert [one["image_id"] for one in document["annotations"]] == [one for one in images for _ in range(2)]


def test_pages_are_named_as_the_web_page_names_them(tmp_path: Path) -> None:
    items: list[tuple[str, int | None]] = [
        ("a/stack.tif[0]", 0),
        ("a/stack.tif[6]", 6),
        ("one.tif", 0),
        ("b[2].png", None),
    ]
    results = [result_of([], 4, 4, index, name, {"page": page}) for index, (name, page) in enumerate(items)]

    document, _ = merged(tmp_path, results)

    assert [one["file_name"] for one in document["images"]] == ["a/stack.tif#1", "a/stack.tif#7", "one.tif", "b[2].png"]


def test_a_category_that_the_file_does_not_name(tmp_path: Path) -> None:
    mask = record_of(disk(8, 8, 4, 4, 3), category_id=6)

    document, _ = merged(tmp_path, [result_of([mask], 8, 8)])

    assert document["categories"] == [{"id": 6, "name": "category 6", "supercategory": "object"}]


def test_geojson_is_as_the_web_page_writes_it(tmp_path: Path) -> None:
    mask = record_of(np.array([[True, True], [False, True]]), category_id=3)
    facts = replace(FACTS, categories=[{"id": 3, "name": "cell"}], clean=9)

    _, features = merged(tmp_path, [result_of([mask], 2, 2, name="a/b.tif")], facts)

    assert features == {
        "type": "FeatureCollection",
        "name": "a/b.tif",  # of the one image, so that the page finds it
        "features": [
            {
                "type": "Feature",
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [[[0, 0], [2, 0], [2, 2], [1, 2], [1, 1], [0, 1], [0, 0]]],
                },
                "properties": {
                    "image": "a/b.tif",
                    "image_id": 1,
                    "id": 1,
                    "category": "cell",
                    "class": "cell",
                    "score": 0.875,
                    "area": 3,
                    "clean": {"holes": 9, "islands": 9},
                    "objectType": "annotation",
                    "classification": {"name": "cell", "color": [47, 143, 255]},
                },
            }
        ],
    }


def test_several_images_in_one_geojson_have_no_common_name(tmp_path: Path) -> None:
    _, features = merged(tmp_path, [result_of([], 4, 4, 0), result_of([], 4, 4, 1)])

    assert features == {"type": "FeatureCollection", "features": []}


def test_a_job_without_results(tmp_path: Path) -> None:
    document, features = merged(tmp_path, [])

    assert (document["images"], document["annotations"], document["categories"]) == ([], [], [])
    assert features["features"] == []
    assert read_by_pycocotools(tmp_path / "annotations.json").getImgIds() == []


def test_hostile_names_and_numbers_are_json(tmp_path: Path) -> None:
    nothing = record_of(disk(8, 8, 4, 4, 3), float("nan"), extra={"stability_score": float("inf")})
    results = [result_of([nothing], 8, 8, index, name) for index, name in enumerate(HOSTILE)]

    document, features = merged(tmp_path, results)

    assert tuple(one["file_name"] for one in document["images"]) == HOSTILE
    assert tuple(one["properties"]["image"] for one in features["features"]) == HOSTILE
    assert (document["annotations"][0]["score"], document["annotations"][0]["stability_score"]) == (None, None)
    (tmp_path / "annotations.json").read_bytes().decode("ascii")


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    result = result_of([record_of(disk(8, 8, 4, 4, 3))], 8, 8)
    merged(tmp_path, [result])
    first = [(tmp_path / name).read_bytes() for name in ("annotations.json", "masks.geojson")]

    merged(tmp_path, [result], replace(FACTS, seconds=9.0))

    assert [(tmp_path / name).read_bytes() for name in ("annotations.json", "masks.geojson")] == first


def test_what_fails_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    merged(tmp_path, [result_of([], 8, 8)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def broken() -> Iterator[ItemResult]:
        yield result_of([record_of(disk(8, 8, 4, 4, 3))], 8, 8)
        raise OSError("the share is gone")

    with pytest.raises(OSError, match="share"):
        write_outputs(tmp_path, [*BOTH, "report"], broken(), FACTS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_many_results_take_little_memory(tmp_path: Path) -> None:
    made = result_of([record_of(disk(64, 64, 8 + 12 * index, 30, 5), annotation_id=0) for index in range(2)], 64, 64)

    def stream(count: int) -> Iterator[ItemResult]:
        for index in range(count):
            if index == 15_000:  # what is held for each image shows in the rest, and tracing takes long
                tracemalloc.start()
            item = Item(index, f"image_{index}.png", made.item.path, f"image_{index}", image_id=index)
            masks = [
                MaskRecord(one.segmentation, one.area, one.bbox, 0.9, 2 * index + at)
                for at, one in enumerate(made.masks)
            ]
            yield ItemResult(item, 64, 64, masks)

    write_outputs(tmp_path, [*BOTH, "report"], stream(30), FACTS)  # what is imported and cached does not count
    try:
        statistics = write_outputs(tmp_path, ["coco", "report"], stream(20_000), FACTS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (statistics.images, statistics.area.count) == (20_000, 40_000)
    assert peak < 2**20
