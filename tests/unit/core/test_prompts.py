from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.masks import FORMATS
from triton_sam.core.prompts import (
    Prompt,
    PromptLimits,
    mask_to_base64,
    object_prompt,
    parse_prompt,
    prompt_from_mapping,
)
from triton_sam.errors import InvalidInput, Unsupported
from triton_sam.settings import Settings

SMALL = PromptLimits(max_points=5, max_objects=3, max_bytes=2000, mask_side=4)


def parse(document: Any, limits: PromptLimits | None = None) -> Prompt:
    return parse_prompt(json.dumps(document), limits)


def refused(document: Any, *words: str, limits: PromptLimits | None = None) -> str:
    """The message of a refusal, which is one line and has all the words."""
    with pytest.raises(InvalidInput) as caught:
        parse(document, limits)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# Good prompts


def test_points_with_labels() -> None:
    prompt = parse({"points": [[10, 20.5], [3, 4]], "labels": [1, 0]})
    assert len(prompt.objects) == 1
    (only,) = prompt.objects
    assert only.points.dtype == np.float32
    assert only.points.tolist() == [[10, 20.5], [3, 4]]
    assert only.labels.dtype == np.int32
    assert only.labels.tolist() == [1, 0]
    assert only.box is None
    assert only.mask_input is None
    assert (prompt.multimask, prompt.format, prompt.text, prompt.image_size) == (False, "png", None, None)


@pytest.mark.parametrize("labels", [{}, {"labels": None}])
def test_points_without_labels_are_foreground(labels: dict[str, Any]) -> None:
    assert parse({"points": [[1, 2], [3, 4]], **labels}).objects[0].labels.tolist() == [1, 1]


@pytest.mark.parametrize("document", [{"box": [1, 2, 30, 40]}, {"boxes": [[1, 2, 30, 40]]}])
def test_one_box(document: dict[str, Any]) -> None:
    (only,) = parse(document).objects
    assert only.box is not None
    assert only.box.dtype == np.float32
    assert only.box.tolist() == [1, 2, 30, 40]
    assert only.points.shape == (0, 2)
    assert only.labels.shape == (0,)


def test_one_box_with_points_is_one_object() -> None:
    (only,) = parse({"points": [[5, 6]], "labels": [0], "boxes": [[1, 2, 30, 40]]}).objects
    assert only.box is not None
    assert only.points.tolist() == [[5, 6]]
    assert only.labels.tolist() == [0]


def test_several_boxes_are_one_object_each() -> None:
    prompt = parse({"boxes": [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 9, 9]]})
    assert [entry.box.tolist() for entry in prompt.objects if entry.box is not None] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [0, 0, 9, 9],
    ]


def test_several_objects_in_their_order() -> None:
    mask = np.arange(16, dtype=np.float32).reshape(4, 4)
    prompt = parse(
        {
            "objects": [
                {"points": [[1, 2]], "labels": [1]},
                {"box": [1, 2, 3, 4], "points": [[2, 3], [2, 2]], "labels": [1, 0]},
                {"mask_input": mask_to_base64(mask)},
            ],
            "multimask": True,
            "format": "rle",
        },
        SMALL,
    )
    first, second, third = prompt.objects
    assert first.points.tolist() == [[1, 2]]
    assert second.box is not None
    assert second.box.tolist() == [1, 2, 3, 4]
    assert second.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(third.mask_input, mask)
    assert prompt.multimask is True
    assert prompt.format == "rle"


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (16,)])
def test_mask_input_as_numbers_and_as_base64(shape: tuple[int, ...]) -> None:
    mask = np.linspace(-7, 7, 16, dtype=np.float32).reshape(4, 4)
    for value in (mask.reshape(shape).tolist(), mask_to_base64(mask)):
        found = parse({"mask_input": value}, SMALL).objects[0].mask_input
        assert found is not None
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form: str) -> None:
    assert parse({"points": [[1, 2]], "format": form}).format == form


def test_text_alone_is_a_prompt() -> None:
    prompt = parse({"text": "a yellow school bus"})
    assert prompt.text == "a yellow school bus"
    assert prompt.objects == ()


def test_image_size() -> None:
    assert parse({"points": [[1, 2]], "image_size": [640, 480]}).image_size == (640, 480)
    assert parse({"points": [[1, 2]], "image_size": None}).image_size is None


def test_bytes_and_text_read_alike() -> None:
    for text in ('{"points": [[1, 2]]}', b'{"points": [[1, 2]]}', ' {"points" : [[1,2]] } '):
        assert parse_prompt(text).objects[0].points.tolist() == [[1, 2]]


def test_empty_parts_say_nothing() -> None:
    (only,) = parse({"points": [[1, 2]], "boxes": [], "box": None, "objects": None}).objects
    assert only.box is None


def test_as_many_as_allowed() -> None:
    assert len(parse({"points": [[1, 2]] * 5}, SMALL).objects[0].points) == 5
    assert len(parse({"objects": [{"points": [[1, 2]]}] * 3}, SMALL).objects) == 3
    assert len(parse({"boxes": [[1, 2, 3, 4]] * 3}, SMALL).objects) == 3


def test_arrays_of_a_client() -> None:
    prompt = object_prompt(np.array([[1, 2], [3, 4]], np.int64), np.array([1, 0], np.uint8), np.array([0.5, 1, 9, 8]))
    assert prompt is not None
    assert prompt.points.tolist() == [[1, 2], [3, 4]]
    assert prompt.labels.tolist() == [1, 0]
    assert prompt.box is not None
    assert prompt.box.tolist() == [0.5, 1, 9, 8]
    rows = object_prompt([np.array([1.5, 2.5]), (3, np.float32(4))], (1, 1))
    assert rows is not None
    assert rows.points.tolist() == [[1.5, 2.5], [3, 4]]


def test_nothing_said_about_an_object_is_none() -> None:
    assert object_prompt() is None
    assert object_prompt(points=[], labels=[], box=[]) is None
    assert object_prompt(points=np.zeros((0, 2))) is None


def test_prompts_inside_the_image() -> None:
    parse({"points": [[0, 0], [640, 480]], "box": [0, 0, 640, 480]}).check_inside(640, 480)


# Bad prompts


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
    refused({"box": box}, "inside out")
    refused({"objects": [{"points": [[1, 1]]}, {"box": box}]}, "box of object 1", "inside out")


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
        {"text": ""},
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
    refused({"objects": [{"points": [[1, 1]]}], **beside}, next(iter(beside)), "beside objects")


@pytest.mark.parametrize("text", ["", " ", "points", "{", "[1,", "{'points': [[1, 2]]}", b"\xff\xfe\x00", b"\0"])
def test_not_json(text: str | bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^prompt_json is no JSON \([^\n]*\)$"):
        parse_prompt(text)


@pytest.mark.parametrize(
    ("document", "kind"), [([1], "list"), ("x", "string"), (5, "int"), (None, "null"), (True, "bool")]
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


# Anything at all

numbers = (
    st.integers(-(10**12), 10**12)
    | st.floats()
    | st.sampled_from([0, 1, 2, 10**400, -(10**400), 1e39])
    | st.integers(0, 50)
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from(["png", "AAAA", "\n"])
keys = st.sampled_from(
    ["points", "labels", "box", "boxes", "mask_input", "objects", "multimask", "format", "text", "image_size"]
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(numbers, min_size=2, max_size=4)
        | st.dictionaries(keys | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=25,
)


def _parses_or_is_refused(text: str | bytes) -> None:
    prompt, refusal = None, "one line"
    try:
        prompt = parse_prompt(text, PromptLimits(mask_side=2))
    except InvalidInput as error:
        refusal = str(error)
    assert len(refusal.splitlines()) == 1
    if prompt is None:
        return
    assert isinstance(prompt, Prompt)
    assert prompt.objects or prompt.text
    for entry in prompt.objects:
        assert np.isfinite(entry.points).all()
        assert len(entry.points) == len(entry.labels)
        assert len(entry.points) or entry.box is not None or entry.mask_input is not None


@given(documents)
def test_any_json_parses_or_is_refused_in_one_line(document: Any) -> None:
    _parses_or_is_refused(json.dumps(document))


@given(st.dictionaries(keys, documents, min_size=1, max_size=4))
def test_any_json_with_our_keys_parses_or_is_refused_in_one_line(document: dict[str, Any]) -> None:
    _parses_or_is_refused(json.dumps(document))


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_parses_or_is_refused(text: str | bytes) -> None:
    _parses_or_is_refused(text)


def test_limits_of_a_machine_and_a_model() -> None:
    limits = PromptLimits.of(Settings(max_points=7, max_objects=8, max_prompt_bytes=9), 288)
    assert (limits.max_points, limits.max_objects, limits.max_bytes, limits.mask_side) == (7, 8, 9, 288)


def test_words_for_a_model_that_knows_none() -> None:
    asked = prompt_from_mapping({"text": "a spoon"})
    asked.check_kinds({"points", "text"}, "sam3:text")
    with pytest.raises(Unsupported, match="sam2:tiny takes points, boxes and masks, not text"):
        asked.check_kinds({"points"}, "sam2:tiny")
