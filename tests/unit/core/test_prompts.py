"""Valid prompts, and arbitrary JSON, which parses or is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.prompt_helpers import SMALL, parse
from triton_sam.core.concepts.request import CONCEPT_KEYS
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
    assert (prompt.multimask, prompt.format, prompt.concepts, prompt.image_size) == (False, "png", None, None)


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


# Anything at all

numbers = (
    st.integers(-(10**12), 10**12)
    | st.floats()
    | st.sampled_from([0, 1, 2, 10**400, -(10**400), 1e39])
    | st.integers(0, 50)
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from(["png", "AAAA", "\n"])
CONCEPT_NAMES = sorted(CONCEPT_KEYS)
keys = st.sampled_from(
    [
        "points",
        "labels",
        "box",
        "boxes",
        "mask_input",
        "objects",
        "multimask",
        "format",
        "image_size",
        *sorted(CONCEPT_KEYS),
    ]
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
    assert prompt.objects or prompt.concepts
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
    asked.check_kinds({"points", "text"}, "sam3:full")
    with pytest.raises(Unsupported, match="sam2:tiny takes points, boxes and masks, not text"):
        asked.check_kinds({"points"}, "sam2:tiny")
