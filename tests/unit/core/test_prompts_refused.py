"""Invalid prompts are refused with a message that names the part."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.unit.core.prompt_helpers import SMALL, parse, refused
from triton_sam.core.masks import FORMATS
from triton_sam.core.prompts import (
    mask_to_base64,
    object_prompt,
    parse_prompt,
    prompt_from_mapping,
)
from triton_sam.errors import InvalidInput


@pytest.mark.parametrize("bad", [[641, 5], [5, 481], [-1, 5], [5, -0.5]])
def test_a_point_outside_is_named(bad: list[float]) -> None:
    prompt = parse({"points": [[1, 1], [2, 2], bad]})
    with pytest.raises(InvalidInput, match=r"^point 2 \(.*outside the image of 640 x 480"):
        prompt.check_inside(640, 480)


def test_a_point_outside_is_named_with_its_object() -> None:
    prompt = parse({"objects": [{"points": [[1, 1]]}, {"points": [[1, 1], [700, 1]]}]})
    with pytest.raises(InvalidInput, match="point 1 of object 1"):
        prompt.check_inside(640, 480)


@pytest.mark.parametrize("box", [[-1, 0, 5, 5], [0, -1, 5, 5], [0, 0, 641, 5], [0, 0, 5, 481]])
def test_a_box_outside(box: list[float]) -> None:
    with pytest.raises(InvalidInput, match=r"box .*outside the image of 640 x 480"):
        parse({"box": box}).check_inside(640, 480)
    with pytest.raises(InvalidInput, match="box of object 1"):
        parse({"boxes": [[1, 1, 2, 2], box]}).check_inside(640, 480)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), 1e300, 10**400, -(10**400)],
    ids=["nan", "inf", "-inf", "1e300", "10**400", "-10**400"],
)
def test_numbers_that_are_no_pixels(value: float) -> None:
    refused({"points": [[1, 1], [value, 2]]}, "points", "entry 1", "finite")
    refused({"points": [[1, value]]}, "entry 0")
    refused({"box": [0, 0, value, 5]}, "box")
    refused({"objects": [{"points": [[1, 1]]}, {"points": [[value, 1]]}]}, "object 1", "entry 0")
    refused({"points": [[1, 1]], "labels": [value]}, "label 0")
    refused({"points": [[1, 1]], "multimask": value}, "multimask")
    refused({"points": [[1, 1]], "image_size": [value, 4]}, "image_size")


def test_a_number_too_long_for_python() -> None:
    with pytest.raises(InvalidInput):
        parse_prompt('{"points": [[1, ' + "9" * 6000 + "]]}")


@pytest.mark.parametrize("value", [True, False, "1", None, [1], {}])
def test_things_that_are_no_numbers(value: Any) -> None:
    refused({"points": [[1, 1], [2, 2], [value, 2]]}, "entry 2")
    refused({"box": [0, 0, value, 5]}, "box")


@pytest.mark.parametrize("row", [[1], [1, 2, 3], [], "xy", 5, None, {"x": 1, "y": 2}])
def test_a_point_has_two_numbers(row: Any) -> None:
    refused({"points": [[1, 1], row]}, "points", "entry 1", "2 numbers")


@pytest.mark.parametrize("points", [5, True, "[[1, 2]]", {"0": [1, 2]}, [1, 2]])
def test_points_are_a_list_of_pairs(points: Any) -> None:
    refused({"points": points}, "points")


@pytest.mark.parametrize("labels", [[], [1], [1, 0, 1]])
def test_one_label_for_each_point(labels: list[int]) -> None:
    refused({"points": [[1, 1], [2, 2]], "labels": labels}, "2 points", f"{len(labels)} labels")


def test_labels_without_points() -> None:
    refused({"labels": [1], "box": [1, 1, 5, 5]}, "labels")


@pytest.mark.parametrize("label", [2, -1, 0.5, True, False, "1", None, [1]])
def test_labels_are_one_or_zero(label: Any) -> None:
    refused({"points": [[1, 1], [2, 2]], "labels": [1, label]}, "label 1")


@pytest.mark.parametrize("labels", [1, "1", {"0": 1}, True])
def test_labels_are_a_list(labels: Any) -> None:
    refused({"points": [[1, 1]], "labels": labels}, "labels")


@pytest.mark.parametrize("box", [[5, 0, 1, 5], [0, 5, 5, 1], [3, 3, 3, 9], [3, 3, 9, 3]])
def test_a_box_inside_out_or_empty(box: list[float]) -> None:
    refused({"box": box}, "inverted or empty")
    refused({"objects": [{"points": [[1, 1]]}, {"box": box}]}, "box of object 1", "inverted or empty")


@pytest.mark.parametrize("box", [[1, 2, 3], [1, 2, 3, 4, 5], "1234", 7, {"x0": 1}, [[1, 2, 3, 4]]])
def test_a_box_has_four_numbers(box: Any) -> None:
    refused({"box": box}, "box", "4 numbers")


@pytest.mark.parametrize("boxes", [5, "abcd", {"0": [1, 2, 3, 4]}, True])
def test_boxes_are_a_list(boxes: Any) -> None:
    refused({"boxes": boxes}, "boxes")


@pytest.mark.parametrize("hole", [None, []])
def test_a_box_that_is_missing_among_others_is_not_dropped_in_silence(hole: Any) -> None:
    refused({"boxes": [hole, [1, 1, 5, 5]]}, "box")


@pytest.mark.parametrize(
    "more", [{"points": [[1, 1]]}, {"mask_input": [0.0] * 16}, {"points": [[1, 1]], "labels": [0]}]
)
def test_several_boxes_with_more_are_ambiguous(more: dict[str, Any]) -> None:
    refused({"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]], **more}, "ambiguous", limits=SMALL)
    refused({"boxes": [[1, 2, 3, 4]], "box": [5, 6, 7, 8], **more}, "ambiguous", limits=SMALL)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"points": []},
        {"points": None, "boxes": []},
        {"objects": []},
        {"text": None},
        {"multimask": True},
        {"format": "rle"},
    ],
)
def test_an_empty_prompt(document: dict[str, Any]) -> None:
    refused(document, "empty")


@pytest.mark.parametrize("entry", [{}, {"points": []}, {"labels": []}, {"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]]}])
def test_an_object_is_one_object(entry: dict[str, Any]) -> None:
    refused({"objects": [{"points": [[1, 1]]}, entry]}, "object 1")


@pytest.mark.parametrize("entry", [5, "points", None, [[1, 1]], True])
def test_an_object_is_a_mapping(entry: Any) -> None:
    refused({"objects": [entry]}, "object 0")


@pytest.mark.parametrize("objects", [5, "x", {"points": [[1, 1]]}, True, {}])
def test_objects_is_a_list(objects: Any) -> None:
    refused({"objects": objects}, "objects")


@pytest.mark.parametrize(
    "beside",
    [{"points": [[1, 1]]}, {"labels": [1]}, {"box": [1, 2, 3, 4]}, {"boxes": [[1, 2, 3, 4]]}, {"mask_input": "x"}],
)
def test_nothing_stands_beside_objects(beside: dict[str, Any]) -> None:
    refused({"objects": [{"points": [[1, 1]]}], **beside}, next(iter(beside)), "combined with objects")


@pytest.mark.parametrize("text", ["", " ", "points", "{", "[1,", "{'points': [[1, 2]]}", b"\xff\xfe\x00", b"\0"])
def test_not_json(text: str | bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^prompt_json is not JSON \([^\n]*\)$"):
        parse_prompt(text)


@pytest.mark.parametrize(
    ("document", "kind"),
    [([1], "a list"), ("x", "a string"), (5, "a number"), (None, "null"), (True, "true or false")],
)
def test_json_of_the_wrong_type(document: Any, kind: str) -> None:
    refused(document, "JSON object", kind)


def test_nesting_far_too_deep() -> None:
    for text in ("[" * 100_000, '{"points":' + "[" * 100_000 + "]" * 100_000 + "}", '{"a":' * 100_000):
        with pytest.raises(InvalidInput):
            parse_prompt(text)


@pytest.mark.parametrize("key", ["points", "box", "labels", "mask_input", "format", "multimask", "objects"])
def test_nesting_just_deep_enough_to_be_read(key: str) -> None:
    """A document that the JSON reader just accepts must not break the message that quotes it."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 120, limit + 5):
        with pytest.raises(InvalidInput):
            parse_prompt(f'{{"points": [[1, 1]], "{key}": ' + "[" * depth + "]" * depth + "}")


def test_ten_thousand_points() -> None:
    refused({"points": [[1, 1]] * 10_000}, "10,000 points", "256")


def test_more_than_allowed() -> None:
    refused({"points": [[1, 1]] * 6}, "6 points", "5", limits=SMALL)
    refused({"objects": [{"points": [[1, 1]]}] * 4}, "4 objects", "3", limits=SMALL)
    refused({"boxes": [[1, 2, 3, 4]] * 4}, "4 boxes", "3", limits=SMALL)
    refused({"points": [[1, 1]], "text": "x" * 2000}, "bytes", "2,000", limits=SMALL)


@pytest.mark.parametrize("key", ["point", "Points", "point_coords", "", "a\nb"])
def test_an_unknown_key_is_named_with_the_known_ones(key: str) -> None:
    refused({"points": [[1, 1]], key: 1}, repr(key), "labels", "multimask")
    refused({"objects": [{"points": [[1, 1]], key: 1}]}, "object 0", repr(key))


@pytest.mark.parametrize("key", ["multimask", "format", "text", "objects"])
def test_options_do_not_belong_into_an_object(key: str) -> None:
    refused({"objects": [{"points": [[1, 1]], key: None}]}, "object 0", repr(key))


@pytest.mark.parametrize("value", [1, 0, "true", None, [], {}])
def test_multimask_is_true_or_false(value: Any) -> None:
    refused({"points": [[1, 1]], "multimask": value}, "multimask")


@pytest.mark.parametrize("value", ["jpeg", "PNG", "", None, 1, ["png"], {}, True])
def test_format_is_one_of_ours(value: Any) -> None:
    refused({"points": [[1, 1]], "format": value}, "format", *FORMATS)


@pytest.mark.parametrize("value", [1, ["a"], {}, True])
def test_text_is_a_string(value: Any) -> None:
    refused({"points": [[1, 1]], "text": value}, "text")


@pytest.mark.parametrize(
    "value",
    [
        5,
        [640],
        [640, 480, 3],
        [0, 480],
        [640, -1],
        [640.5, 480],
        [True, 480],
        ["640", "480"],
        "640x480",
        {},
        [1, 10**9],
    ],
)
def test_image_size_is_two_positive_integers(value: Any) -> None:
    refused({"points": [[1, 1]], "image_size": value}, "image_size")


@pytest.mark.parametrize(
    "value",
    [
        [0.0] * 15,
        [0.0] * 17,
        [[0.0] * 8] * 2,
        [[0.0] * 16],
        [[0.0] * 4] * 3 + [[0.0] * 3],
        [],
        "",
        5,
        True,
        {},
        {"data": 1},
        [{}] * 16,
        [None] * 16,
        [[[]]],
        "not base64!",
        "é" * 8,
        mask_to_base64(np.zeros(15)),
        mask_to_base64(np.zeros(16))[:-4],
        mask_to_base64(np.full(16, np.nan)),
        [float("nan")] + [0.0] * 15,
        [0.0] * 15 + [float("-inf")],
    ],
    ids=repr,
)
def test_a_mask_input_that_cannot_be_used(value: Any) -> None:
    refused({"mask_input": value}, "mask_input", "4 x 4", limits=SMALL)
    refused({"objects": [{"mask_input": value}]}, "mask_input of object 0", limits=SMALL)


def test_a_mask_input_of_text_is_not_numbers() -> None:
    refused({"mask_input": ["1"] * 16}, "mask_input", limits=SMALL)


@pytest.mark.parametrize("value", [1e39, -1e300, 10**400], ids=["1e39", "-1e300", "10**400"])
def test_a_mask_input_beyond_float32(value: float) -> None:
    refused({"mask_input": [value] + [0.0] * 15}, "mask_input", limits=SMALL)


@pytest.mark.parametrize("argument", ["points", "labels", "box", "mask_input"])
def test_a_single_number_of_numpy_instead_of_an_array(argument: str) -> None:
    arguments = {"points": [[1, 1]]} | {argument: np.array(5.0)}
    with pytest.raises(InvalidInput, match=argument):
        object_prompt(**arguments)


def test_a_mapping_gets_the_same_checks() -> None:
    assert prompt_from_mapping({"points": [[1, 2]]}).objects[0].points.tolist() == [[1, 2]]
    with pytest.raises(InvalidInput, match="unknown key"):
        prompt_from_mapping({"dots": [[1, 2]]})
