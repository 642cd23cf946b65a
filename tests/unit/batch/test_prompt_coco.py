"""Boxes from COCO files, by both of ijson's parsers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.batch.prompts import json_stream
from triton_sam.batch.prompts.coco_prompts import CocoPrompts
from triton_sam.batch.prompts.prompt_files import open_prompts
from triton_sam.batch.records import ItemPrompt, PromptImage
from triton_sam.core.rle import rle
from triton_sam.errors import InvalidInput

IMAGE = {"id": 7, "file_name": "a.png", "width": 100, "height": 50}
ANNOTATION = {"id": 1, "image_id": 7, "category_id": 3, "bbox": [10, 20, 5.5, 6], "iscrowd": 0}


@pytest.fixture(autouse=True, params=["python", "default"])
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Not monkeypatch, because properties take no fixtures of one test."""
    before = json_stream._parser
    if request.param == "python":
        json_stream._parser = ijson.get_backend("python")
    yield
    json_stream._parser = before


def coco(folder: Path, document: Any) -> CocoPrompts:
    path = folder / "coco.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return CocoPrompts(path)


def one(folder: Path, image: dict[str, Any] | None = None, **annotation: Any) -> list[tuple[str, ItemPrompt]]:
    """The prompts of one annotation."""
    document = {"images": [IMAGE | (image or {})], "annotations": [ANNOTATION | annotation]}
    return list(coco(folder, document).prompts())


def test_images_boxes_and_categories(tmp_path: Path) -> None:
    categories = [{"id": 3, "name": "cell", "supercategory": ""}]
    images = [IMAGE, {"id": 9, "file_name": ".\\d\\b.png"}]
    prompts = coco(tmp_path, {"categories": categories, "images": images, "annotations": [ANNOTATION]})
    assert list(prompts.images()) == [PromptImage("7", "a.png", 7), PromptImage("9", "d/b.png", 9)]
    assert list(prompts.categories) == categories
    assert list(prompts.prompts()) == [
        ("7", ItemPrompt(box=(10, 20, 15.5, 26), annotation_id=1, category_id=3)),
    ]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_order_of_the_keys_does_not_matter(tmp_path: Path, mark: bytes) -> None:
    document = {"annotations": [ANNOTATION], "info": {"images": [1]}, "categories": [{"id": 3}], "images": [IMAGE]}
    prompts = coco(tmp_path, mark + json.dumps(document).encode())
    assert [key for key, _ in prompts.prompts()] == ["7"]
    assert list(prompts.categories) == [{"id": 3}]
    assert [image.key for image in prompts.images()] == ["7"]


def test_boxes_are_clipped_to_their_image_where_its_size_is_known(tmp_path: Path) -> None:
    box = [-3, 40, 200, 200]
    assert one(tmp_path, bbox=box)[0][1].box == (0, 40, 100, 50)
    assert one(tmp_path, {"width": None}, bbox=box)[0][1].box == (0, 40, 197, 50)
    assert one(tmp_path, {"width": 0, "height": 0}, bbox=box)[0][1].box == (0, 40, 197, 240)


def test_an_annotation_without_a_box_has_that_of_its_segmentation(tmp_path: Path) -> None:
    polygons = [[1, 2, 30.5, 2, 30.5, 8], [40, 3, 50, 3, 50, 20]]
    assert one(tmp_path, bbox=None, segmentation=polygons)[0][1].box == (1, 2, 50, 20)
    mask = np.zeros((50, 100), np.bool_)
    mask[4:9, 10:30] = True
    assert one(tmp_path, bbox=[], segmentation=rle(mask))[0][1].box == (10, 4, 30, 9)
    mask[:, 50:60] = True
    counts = np.diff(np.flatnonzero(np.diff(mask.T.ravel().astype(int), prepend=0, append=1)), prepend=0).tolist()
    assert one(tmp_path, bbox=None, segmentation={"size": [50, 100], "counts": counts})[0][1].box == (10, 0, 60, 50)


def test_crowds_and_annotations_without_a_box_are_left_out(tmp_path: Path) -> None:
    annotations = [
        ANNOTATION | {"id": 1, "iscrowd": 1},
        {"id": 2, "image_id": 7, "caption": "a cell"},
        {"id": 3, "image_id": 7, "segmentation": rle(np.zeros((5, 6), np.bool_))},
        ANNOTATION | {"id": 4},
    ]
    prompts = coco(tmp_path, {"images": [IMAGE], "annotations": annotations})
    assert [prompt.annotation_id for _, prompt in prompts.prompts()] == [4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 2, 3]}, r"annotations\[0\] \(id 1\): its bbox \[1, 2, 3\] is not .*four finite numbers"),
        ({"bbox": [1, 2, 3, "4"]}, "four finite numbers"),
        ({"bbox": [1, 2, 3, 1e300]}, "four finite numbers"),
        ({"bbox": [1, 2, 0, 4]}, "has no area: its last two numbers are width and height"),
        ({"bbox": [1, 2, 3, -4]}, "has no area"),
        ({"bbox": [100, 2, 3, 4]}, r"the corners \[100, 2, 103, 6\] lies outside the image of 100 x 50 pixels"),
        ({"bbox": [-5, -5, 3, 4]}, "lies outside the image"),
        ({"image_id": 8}, r"annotations\[0\] \(id 1\) is for the image 8, which is not among"),
        ({"image_id": "7"}, "is for the image '7', which is not among"),
        ({"bbox": None, "segmentation": "what"}, "has no bbox, and its segmentation is neither polygons nor an RLE"),
        ({"bbox": None, "segmentation": [[1, 2, 3]]}, "neither polygons nor an RLE"),
        ({"bbox": None, "segmentation": {"size": [5, 6], "counts": [1, 2]}}, "neither polygons nor an RLE"),
        ({"bbox": None, "segmentation": [[1, 2, 5, 2]]}, "its segmentation has no area"),
    ],
)
def test_annotations_that_are_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        one(tmp_path, **change)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "coco.json is not JSON: a COCO file is"),
        (b"hello", "coco.json is not JSON: a COCO file is"),
        (b'[{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]', "is a list, perhaps of a detector's results"),
        (b'{"images": [{"id": 1', "is not JSON: it ends too early, after 20 bytes"),
        (b'{"images": [],\n "annotations": [1, }', r"is not JSON: line 2, byte 2\d: "),
        (b'{"images": [],\n "annotations": [NaN]}', r"is not JSON: line 2, byte 1\d: "),
        (b'{"images": ["\xff"]}', "is not JSON: line 1, byte "),
        ({}, 'is no COCO file, because it has no "images"'),
        ({"info": {"images": 1}, "annotations": []}, 'is no COCO file, because it has no "images"'),
        ({"images": []}, 'has no entry in its list "images", so there is nothing to do'),
        ({"images": [IMAGE]}, 'is no COCO file, because it has no "annotations"'),
        ({"images": [IMAGE], "annotations": []}, 'no entry in its list "annotations", so there are no boxes: use --ev'),
        ({"images": [IMAGE], "annotations": [{"image_id": 7}]}, "none of the 1 annotations of .* has a box: add bbox"),
        ({"images": [IMAGE], "annotations": [ANNOTATION | {"iscrowd": 1}]}, "all 1 annotations of .* are crowds"),
        ({"images": [IMAGE], "annotations": [5]}, r"annotations\[0\] is 5 and no object"),
        ({"images": [5]}, r"images\[0\] is 5 and no object"),
        ({"images": [IMAGE], "categories": [5]}, "the category 5 is no object"),
        ({"images": [{"id": "x"}]}, r"images\[0\] has the id 'x', and ids are whole numbers"),
        ({"images": [{"id": 1}]}, r"images\[0\] \(id 1\) has no file_name"),
        ({"images": [IMAGE, IMAGE | {"file_name": "b"}]}, r"images\[1\] has the id 7 of an image before it"),
        ({"images": [IMAGE, IMAGE | {"id": 8}]}, r"images\[1\] has the file_name a.png of an image before it"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        list(coco(tmp_path, document).prompts())


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has vanished"):
        list(CocoPrompts(Path(__file__).with_name("not-there.json")).images())


def test_whoever_stops_early_sees_no_error(tmp_path: Path) -> None:
    prompts = coco(tmp_path, {"images": [IMAGE], "annotations": [ANNOTATION] * 3})
    assert next(prompts.images()).key == "7"
    assert next(prompts.prompts())[0] == "7"


def test_which_file_has_the_prompts(tmp_path: Path) -> None:
    coco(tmp_path, {})
    path = tmp_path / "coco.json"
    assert open_prompts(None, None) is None
    assert isinstance(open_prompts(path, None), CocoPrompts)
    with pytest.raises(InvalidInput, match="prompts come from one file: give --coco or --csv, not both"):
        open_prompts(path, path)
    with pytest.raises(InvalidInput, match=r"the file of prompts .* does not exist: give a COCO JSON file"):
        open_prompts(tmp_path / "no.json", None)
    with pytest.raises(InvalidInput, match=r"the file of prompts .* is a folder: give a CSV file"):
        open_prompts(None, tmp_path)


SIDE = st.one_of(st.integers(1, 500), st.floats(0.25, 500, width=32))
BOXES = st.lists(
    st.tuples(st.integers(0, 400) | st.floats(0, 400, width=32), st.floats(0, 400), SIDE, SIDE), min_size=1
)


@given(boxes=BOXES, seed=st.integers(0, 2**32), chunk=st.integers(1, 300), indent=st.sampled_from((None, 1)))
def test_what_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, boxes: list[Any], seed: int, chunk: int, indent: int | None
) -> None:
    random_order = random.Random(seed)

    def shuffled(document: dict[str, Any]) -> dict[str, Any]:
        return dict(random_order.sample(list(document.items()), len(document)))

    ids = random_order.sample(range(-5, 10**9), len(boxes))
    images = [shuffled({"id": key, "file_name": f"é/{key}.jpg", "license": {"images": []}}) for key in ids]
    owners = [random_order.choice(ids) for _ in boxes]
    annotations = [
        shuffled({"id": number, "image_id": owner, "category_id": 1, "bbox": list(box), "area": 0.5, "iscrowd": 0})
        for number, (owner, box) in enumerate(zip(owners, boxes, strict=True))
    ]
    document = shuffled({"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": []})
    path = tmp_path_factory.mktemp("coco") / "coco.json"
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        prompts = CocoPrompts(path)
        assert [(image.image_id, image.name) for image in prompts.images()] == [(k, f"é/{k}.jpg") for k in ids]
        found = list(prompts.prompts())
    assert [key for key, _ in found] == [str(owner) for owner in owners]
    assert [prompt.annotation_id for _, prompt in found] == list(range(len(boxes)))
    assert [prompt.box for _, prompt in found] == [(x, y, x + width, y + height) for x, y, width, height in boxes]
