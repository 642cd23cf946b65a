"""Kosmos-2's tags, read as transformers reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.engines.vlm.patches import SIDE, box_of, read_located, without_tags

pytestmark = pytest.mark.torch

CAPTION = (
    "<grounding> An image of<phrase> a snowman</phrase><object><patch_index_0044><patch_index_0863></object> warming"
    " himself by<phrase> a fire</phrase><object><patch_index_0005><patch_index_0911></object>."
)
PATCHES = st.integers(0, SIDE * SIDE - 1)
BOX = st.builds("<patch_index_{:04d}><patch_index_{:04d}>".format, PATCHES, PATCHES)
BOXES = st.lists(BOX, min_size=1, max_size=3).map("</delimiter_of_multi_objects/>".join)
PHRASE = st.text("ab \n.,é", min_size=0, max_size=6).map(lambda words: f"<phrase>{words}</phrase>")
OBJECT = BOXES.map(lambda boxes: f"<object>{boxes}</object>")
#: What a model may say, and what no model should.
PIECES = st.one_of(
    st.text("ab <>/\n", max_size=5),
    st.tuples(PHRASE, OBJECT).map("".join),
    PHRASE,
    OBJECT,
    BOX,
    st.sampled_from(
        ["<grounding>", "<object>", "</object>", "<phrase>", "</phrase>", "</delimiter_of_multi_objects/>"]
    ),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def test_an_example() -> None:
    text, (snowman, fire) = read_located(CAPTION)
    assert text == "An image of a snowman warming himself by a fire."
    assert (snowman.phrase, text[snowman.start : snowman.end]) == ("a snowman", "a snowman")
    assert snowman.boxes == ((0.390625, 0.046875, 0.984375, 0.828125),)
    assert (fire.phrase, text[fire.start : fire.end]) == ("a fire", "a fire")


@given(TEXTS)
def test_texts_are_read_as_transformers_reads_them(text: str) -> None:
    from transformers.models.kosmos2.processing_kosmos2 import clean_text_and_extract_entities_with_bboxes

    expected, entities = clean_text_and_extract_entities_with_bboxes(text)
    plain, found = read_located(text)
    assert plain == expected == without_tags(text).strip()
    named = [(item.phrase, (item.start, item.end), list(item.boxes)) for item in found if item.phrase is not None]
    assert named == [entity for entity in entities if "<patch_index" not in entity[0]]
    # transformers gives boxes without a phrase one by one, each with its patches for a name.
    nameless = [(item.start, [box]) for item in found if item.phrase is None for box in item.boxes]
    positions = [(span, boxes) for name, span, boxes in entities if "<patch_index" in name]
    assert [boxes for _, boxes in nameless] == [boxes for _, boxes in positions]
    assert all(item.start == item.end for item in found if item.phrase is None)


@given(PATCHES, PATCHES)
def test_boxes_are_those_of_transformers(first: int, last: int) -> None:
    from transformers.models.kosmos2.processing_kosmos2 import patch_index_to_coordinate

    assert box_of(first, last) == patch_index_to_coordinate(first, last, SIDE)


@given(st.integers(0, SIDE - 2), st.integers(0, SIDE - 2), st.data())
def test_a_box_that_is_written_comes_back(left: int, top: int, data: st.DataObject) -> None:
    """With transformers' own writer: at most half a patch is lost."""
    from transformers.models.kosmos2.processing_kosmos2 import coordinate_to_patch_index

    right, bottom = (data.draw(st.integers(begin + 1, SIDE)) for begin in (left, top))
    box = tuple(side / SIDE for side in (left, top, right, bottom))
    back = box_of(*coordinate_to_patch_index(box, SIDE))
    assert back == pytest.approx(box, abs=0.5 / SIDE)
