"""Words for objects and for places, and regions in original pixels."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training.shapes import scenes

from triton_sam.engines.vlm.crops import Crop
from triton_sam.engines.vlm.regions import asked_object, box_region, place_shares, point_region
from triton_sam.models.vlm_catalog import get_vlm

PLACES = get_vlm("vlm:shapes").places
SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 5000))


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("where is the cup?", "cup"),
        ("Where are the red cups", "red cups"),
        ("Where's my dog?", "my dog"),
        ("Show me a zebra.", "zebra"),
        ("Point to the left eye of the man", "left eye of the man"),
        ("Please find all the people in this image.", "people"),
        ("Is there an apple?", "apple"),
        ("all of the coins", "coins"),
        ("the cup", "cup"),
        ("cup", "cup"),
        ("  red \n cup !", "red cup"),
        ("thermos", "thermos"),
        ("anchor", "anchor"),
        ("findings", "findings"),
        ("How many cups?", "How many cups"),
        ("la tasse", "la tasse"),
    ],
)
def test_what_a_question_asks_for(question: str, name: str) -> None:
    assert asked_object(question) == name


@given(st.text(max_size=80))
def test_any_text_keeps_some_word(text: str) -> None:
    name = asked_object(text)
    assert name == " ".join(name.split())
    assert len(name) <= len(text)


def test_the_places_are_those_that_the_toy_was_taught() -> None:
    assert tuple(words for row in PLACES for words in row) == scenes.PLACES


@pytest.mark.parametrize("kind", ["_place", "_describe"])
def test_what_the_toy_says_becomes_the_cells_of_its_things(kind: str) -> None:
    rng = random.Random(3)
    checked = 0
    for _ in range(200):
        scene = scenes.make_scene(rng)
        asked = getattr(scenes, kind)(scene, rng)
        if asked is None:
            continue
        cells = {(thing.name, thing.cell) for thing in scene.things if kind == "_describe" or thing.name in asked[1]}
        found = place_shares(asked[1], PLACES)
        assert {(label, round(3 * x0) + 3 * round(3 * y0)) for label, (x0, y0, _, _) in found} == cells
        assert all(x1 - x0 == pytest.approx(1 / 3) == pytest.approx(y1 - y0) for _, (x0, y0, x1, y1) in found)
        checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    "text", ["", "Nothing.", "The circle is red.", "at the top", "No, there is no red circle.", "a"]
)
def test_texts_without_a_place(text: str) -> None:
    assert place_shares(text, PLACES) == []


def test_a_long_text_takes_no_time() -> None:
    assert place_shares("the a is " * 20_000, PLACES) == []
    assert place_shares("the " + "word " * 20_000, PLACES) == []
    assert place_shares("the" + " " * 20_000 + "." + "the" * 20_000 + "-" * 20_000, PLACES) == []
    assert place_shares("a word" * 20_000, PLACES) == []
    assert asked_object("where is" + " " * 20_000 + "the" + " " * 20_000 + "?") == "the"


@given(SIZES, st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_a_point_is_a_box_without_area(size: tuple[int, int], x: float, y: float) -> None:
    crop = Crop.whole(size)
    found = point_region("it", x, y, crop)
    assert bool(found) == (0 <= x * size[0] <= size[0] and 0 <= y * size[1] <= size[1])
    if found:
        assert found[0]["label"] == "it"
        assert found[0]["point"] == pytest.approx([x * size[0], y * size[1]], abs=0.01)


@given(SIZES)
def test_a_box_is_clipped_to_the_image(size: tuple[int, int]) -> None:
    crop = Crop.whole(size)
    assert box_region("it", [-0.25, 0.5, 0.5, 1.25], crop) == [
        {"label": "it", "box": pytest.approx([0, 0.5 * size[1], 0.5 * size[0], size[1]], abs=0.01)}
    ]
    assert box_region("it", [1.0, 0.0, 1.5, 1.0], crop) == []
