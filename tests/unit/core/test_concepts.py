"""Concepts: requests in JSON, and the choice of instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_sam.core.concepts.request import SCORE_THRESHOLD, VISUAL, ConceptRequest, concept_text
from triton_sam.core.concepts.selection import pixel_boxes, select, sigmoid, square_boxes
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.prompts import PromptLimits, prompt_from_mapping
from triton_sam.errors import InvalidInput


def request(document: dict[str, Any], limits: PromptLimits | None = None) -> ConceptRequest:
    prompt = prompt_from_mapping(document, limits)
    assert prompt.concepts is not None
    assert prompt.objects == ()
    return prompt.concepts


def test_a_text() -> None:
    asked = request({"text": "  a yellow \n school bus "})
    (only,) = asked.concepts
    assert (only.text, only.words) == ("a yellow school bus", "a yellow school bus")
    assert only.boxes.shape == (0, 4)
    assert (asked.score_threshold, asked.most) == (SCORE_THRESHOLD, PromptLimits().max_instances)


def test_several_texts_are_several_concepts_in_their_order() -> None:
    assert [concept.text for concept in request({"text": ["coin", "spoon"]}).concepts] == ["coin", "spoon"]


def test_exemplars_alone_stand_for_the_word_visual() -> None:
    (only,) = request({"exemplars": [[1, 2, 3, 4], [5, 6, 7, 8]], "exemplar_labels": [1, 0]}).concepts
    assert (only.text, only.words) == (None, VISUAL)
    assert only.boxes.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert only.labels.tolist() == [1, 0]


def test_each_concept_has_its_own_exemplars() -> None:
    asked = request({"concepts": [{"text": "coin"}, {"exemplars": [[1, 2, 3, 4]]}], "score_threshold": 0.2})
    assert [concept.text for concept in asked.concepts] == ["coin", None]
    assert [len(concept.boxes) for concept in asked.concepts] == [0, 1]
    assert asked.concepts[1].labels.tolist() == [1]
    assert asked.score_threshold == 0.2


def test_a_text_with_negative_exemplars_only() -> None:
    (only,) = request({"text": "coin", "exemplars": [[1, 2, 3, 4]], "exemplar_labels": [0]}).concepts
    assert only.labels.tolist() == [0]


BOX = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": " \t\n"}, "text is empty"),
        ({"text": []}, "text is empty"),
        ({"text": "\N{SLIGHTLY SMILING FACE}"}, "no letter or digit"),
        ({"text": "x" * 10_000}, "10,000 characters and 400 are allowed"),
        ({"text": "coin\x00"}, "control characters"),
        ({"text": "coin\ud800"}, "control characters"),
        ({"text": 3}, "not a number"),
        ({"text": ["coin", None, "x"]}, "^concept 1 is empty: give a text or exemplars"),
        ({"text": ["coin", "spoon"], "exemplars": [BOX]}, "ambiguous: use concepts"),
        ({"text": ["coin"] * 17}, "17 concepts are too many: 16 are allowed"),
        ({"exemplars": [BOX], "exemplar_labels": [0]}, "negative exemplars alone"),
        ({"exemplars": [BOX], "exemplar_labels": [2]}, "exemplar_label 0 is 1"),
        ({"exemplars": [BOX], "exemplar_labels": [1, 0]}, "1 exemplars have 2 labels"),
        ({"exemplars": [[3, 3, 1, 5]]}, "exemplar 0 .* is inverted or empty"),
        ({"exemplars": [[1, 2, 3]]}, "exemplar 0 needs 4 numbers, not"),
        ({"exemplars": [[1, 2, 3, float("nan")]]}, "not a finite number"),
        ({"exemplars": "all"}, "exemplars is a list"),
        ({"exemplars": [BOX] * 500}, "500 exemplars are too many"),
        ({"exemplar_labels": [1]}, "0 exemplars have 1 labels"),
        ({"score_threshold": 0.3}, "score_threshold needs a concept"),
        ({"text": "coin", "score_threshold": 1.5}, "from 0 to 1"),
        ({"text": "coin", "max_instances": 0}, "from 1 to 200"),
        ({"text": "coin", "max_instances": True}, "from 1 to 200"),
        ({"concepts": {}}, "concepts is a list, not an object"),
        ({"concepts": []}, "concepts needs a concept"),
        ({"concepts": [{}]}, "the concept is empty"),
        ({"concepts": ["coin"]}, "concept 0 is a JSON object"),
        ({"concepts": [{"text": "coin", "points": [[1, 1]]}]}, "unknown key 'points'"),
        ({"concepts": [{"text": "coin"}], "text": "spoon"}, "text cannot be combined with concepts"),
        ({"text": "coin", "points": [[1, 1]]}, "points cannot be combined with text or exemplars"),
        ({"text": "coin", "objects": [{"box": BOX}]}, "objects cannot be combined"),
        ({"text": "coin", "multimask": True}, "leave multimask out"),
        ({"text": "coin", "everything": {}}, "text cannot be combined with everything"),
    ],
)
def test_what_is_refused_in_one_sentence(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refusal:
        prompt_from_mapping(document)
    assert len(str(refusal.value).splitlines()) == 1


def test_limits_of_the_server() -> None:
    limits = PromptLimits(max_concepts=1, max_instances=7)
    assert request({"text": "coin"}, limits).most == 7
    for document in ({"text": ["a", "b"]}, {"text": "a", "max_instances": 8}):
        with pytest.raises(InvalidInput):
            prompt_from_mapping(document, limits)


def test_exemplars_outside_the_image() -> None:
    asked = prompt_from_mapping({"text": "coin", "exemplars": [[0, 0, 10, 10], [5, 5, 21, 10]]})
    asked.check_inside(21, 10)
    with pytest.raises(InvalidInput, match=r"exemplar 1 .* reaches outside the image of 20 x 10 pixels"):
        asked.check_inside(20, 10)


@pytest.mark.parametrize(
    "text", ["caf\u00e9", "\u7ea2\u8272\u5706", "2", "bus \N{SLIGHTLY SMILING FACE}", "\u0939\u093f"]
)
def test_words_of_any_script(text: str) -> None:
    assert concept_text(text) == text


@given(st.text(max_size=60))
def test_any_text_is_taken_or_refused_in_one_line(text: str) -> None:
    taken, refusal = None, ""
    try:
        taken = concept_text(text)
    except InvalidInput as error:
        refusal = str(error)
    assert len(refusal.splitlines()) <= 1
    assert taken is None or taken.strip() == taken != ""


# Instances


def test_scores_are_those_of_the_reference() -> None:
    logits = np.array([2.0, -3.0, 4.0, 0.5], np.float32)
    chosen = select(logits, 1.0, 0.3, 2)
    presence = 1 / (1 + np.exp(-1.0))
    expected = presence / (1 + np.exp(-logits.astype(np.float64)))
    assert chosen.presence == pytest.approx(presence, rel=1e-6)
    assert chosen.queries.tolist() == [2, 0]
    assert chosen.scores == pytest.approx(expected[[2, 0]], rel=1e-6)
    assert chosen.found == 3


def test_equal_scores_keep_the_order_of_the_queries() -> None:
    assert select(np.zeros(40, np.float32), 9.0, 0.1, 40).queries.tolist() == list(range(40))


def test_nothing_is_found_of_an_absent_concept() -> None:
    chosen = select(np.full(5, 8.0, np.float32), -8.0, 0.5, 5)
    assert (chosen.found, len(chosen.queries)) == (0, 0)


@given(arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(-200, 200, width=32)), st.integers(1, 30))
def test_instances_are_sorted_and_above_the_threshold(logits: np.ndarray, most: int) -> None:
    chosen = select(logits, 0.0, 0.25, most)
    assert (np.diff(chosen.scores) <= 0).all()
    assert (chosen.scores > 0.25).all()
    assert len(chosen.scores) == min(most, chosen.found)
    assert chosen.found == int((sigmoid(logits) * np.float32(0.5) > 0.25).sum())


FRAMES = st.builds(
    Frame, st.integers(1, 5000), st.integers(1, 5000), st.just(1008), st.sampled_from(list(ResizePolicy))
)


@given(FRAMES, st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=4))
def test_boxes_come_back_from_the_models_square(frame: Frame, shares: list[tuple[float, ...]]) -> None:
    low = np.array(shares, np.float32)[:, :2] * [frame.width, frame.height]
    high = low + np.array(shares, np.float32)[:, 2:] * ([frame.width, frame.height] - low)
    boxes = np.concatenate([low, high], axis=1).astype(np.float32)
    middle = square_boxes(boxes, frame)
    corners = np.concatenate([middle[:, :2] - middle[:, 2:] / 2, middle[:, :2] + middle[:, 2:] / 2], axis=1)
    back = pixel_boxes(corners, frame)
    assert np.abs(back - boxes).max() <= 1e-3 * max(frame.width, frame.height)


def test_a_box_in_a_squashed_image() -> None:
    frame = Frame(200, 100, 1008, ResizePolicy.SQUASH)
    assert square_boxes(np.array([[50, 25, 150, 75]], np.float32), frame).tolist() == [[0.5, 0.5, 0.5, 0.5]]
    assert pixel_boxes(np.array([[-0.1, 0.25, 0.5, 1.2]], np.float32), frame).tolist() == [[0, 25, 100, 100]]
