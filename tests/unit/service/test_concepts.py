"""Words and examples through ``/v1/segment``: as JSON, as a form, and by the hover socket."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.unit import concept_messages as concepts
from tests.unit.service.helpers import (
    KEY,
    SEGMENTERS,
    SPEC,
    Fake,
    FakeTransport,
    answer_as_a_segmenter,
    ask,
    image_file,
    refusal,
)
from triton_sam.client.wire import Call, Outputs
from triton_sam.errors import ImageExpired
from triton_sam.models.specs import ModelSpec
from triton_sam.service.served_models import choose

IMAGE = image_file(concepts.WIDTH, concepts.HEIGHT)
FILE = {"image": ("a.png", IMAGE)}


def listening(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """The same model, which takes text."""
    return dataclasses.replace(spec, prompts=spec.prompts | {"text"}, **changes)


DEAF = {"sam2": SPEC, "sam2.1_large": SEGMENTERS["sam2.1_large"]}
#: Its weights are all in the package.
TOY = listening(SEGMENTERS["sam3"], id="sam3:shapes", files=(), checkpoints=())
REAL = listening(SEGMENTERS["sam3"], id="sam3:full")


def answered(call: Call) -> Outputs:
    return concepts.answer(call) if concepts.asks(call) else answer_as_a_segmenter(call)


def fake(**segmenters: ModelSpec) -> Fake:
    return Fake(FakeTransport(answered), segmenters={**DEAF, **(segmenters or {"sam3": REAL})})


@pytest.fixture(scope="module")
def schema() -> Mapping[str, Any]:
    return ask("GET", "/openapi.json", fake()).json()


def check(schema: Mapping[str, Any], name: str, value: Any) -> None:
    document = {"$ref": f"#/components/schemas/{name}", "components": schema["components"]}
    jsonschema_rs.validate(document, value)


# JSON


@pytest.mark.parametrize(
    "prompt",
    [
        {"text": "coin"},
        {"text": ["coin", "zebra"], "score_threshold": 0.1, "max_instances": 1},
        {"exemplars": [[0, 0, 2, 2]]},
        {"text": "coin", "exemplars": [[0, 0, 2, 2]], "exemplar_labels": [0], "clean": 8},
        {"concepts": [{"text": "coin"}, {"exemplars": [[0, 0, 2, 2]], "exemplar_labels": [1]}]},
        {"text": "zebra"},
    ],
    ids=str,
)
def test_the_prompt_reaches_the_server_and_the_answer_the_client(
    prompt: dict[str, Any], schema: Mapping[str, Any]
) -> None:
    there = fake()
    request = {"image_key": KEY, "format": "rle", **prompt}
    check(schema, "SegmentRequest", request)
    found = ask("POST", "/v1/segment", there, json=request)
    assert found.status_code == 200, found.text
    [call] = there.transport.calls
    assert call.model == "sam3"
    assert there.transport.prompt() == {"format": "rle", **prompt}
    assert found.content == answered(call)["result_json"][0]
    check(schema, "SegmentAnswer", found.json())


def test_clicks_are_still_described(schema: Mapping[str, Any]) -> None:
    click = {"image_key": KEY, "points": [[1, 1]]}
    check(schema, "SegmentRequest", click)
    check(schema, "SegmentAnswer", ask("POST", "/v1/segment", fake(), json=click).json())
    for example in schema["components"]["schemas"]["SegmentRequest"]["examples"]:
        check(schema, "SegmentRequest", example)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": "   "}, "text is empty"),
        ({"text": "\ud800"}, "control characters"),
        ({"text": "x" * 10_000}, "10,000 characters and 400 are allowed"),
        ({"text": ["coin", 3]}, "text of concept 1 is a string"),
        ({"text": "coin", "points": [[1, 1]]}, "points cannot be combined with text"),
        ({"text": "coin", "everything": {}}, "everything has a route of its own"),
        ({"exemplars": [[0, 0, 2, 2]], "exemplar_labels": [0]}, "negative exemplars alone"),
        ({"text": ["a"] * 17}, "17 concepts are too many: 16 are allowed"),
        ({"text": "coin", "score_threshold": "high"}, "a number from 0 to 1"),
        ({"text": "coin", "max_instances": 201}, "from 1 to 200"),
        ({"text": "coin", "format": "jpeg"}, "format is one of"),
    ],
)
def test_what_is_wrong_never_reaches_triton(prompt: dict[str, Any], words: str) -> None:
    there = fake()
    answer = ask("POST", "/v1/segment", there, content=json.dumps({"image_key": KEY, **prompt}))
    assert words in refusal(answer, 400, "invalid_input")
    assert there.transport.calls == []


def test_exemplars_outside_an_image_that_comes_along() -> None:
    request = {"image": concepts.image_field(IMAGE), "exemplars": [[5, 1, 30, 4]]}
    message = refusal(ask("POST", "/v1/segment", fake(), json=request), 400, "invalid_input")
    assert "reaches outside the image of 11 x 5 pixels: clip it" in message


# forms


def test_an_image_file_and_a_word_in_one_form() -> None:
    there = fake()
    found = ask("POST", "/v1/segment", there, files=FILE, data={"text": "coin", "format": "rle"})
    assert found.status_code == 200, found.text
    assert [entry["score"] for entry in found.json()["masks"]] == [0.93, 0.75]
    [call] = there.transport.calls
    assert (call.model, call.inputs["image"].tobytes()) == ("sam3", IMAGE)
    assert there.transport.prompt() == {"text": "coin", "format": "rle"}


def test_a_form_has_the_fields_of_the_json() -> None:
    there = fake()
    data = {
        "image_key": KEY,
        "text": '["coin", "spoon"]',
        "score_threshold": "0.25",
        "max_instances": "3",
        "session_id": "me",
        "latest_wins": "true",
        "multimask": "",
    }
    assert ask("POST", "/v1/segment", there, files={"x": ("", b"")}, data=data).status_code == 200
    assert there.transport.prompt() == {"text": ["coin", "spoon"], "score_threshold": 0.25, "max_instances": 3}
    assert there.transport.calls[0].parameters["latest_wins"] is True
    assert ask("POST", "/v1/segment", there, files=FILE, data={"points": "[[1, 2]]"}).status_code == 200
    assert there.transport.calls[1].model == "sam2"
    assert there.transport.prompt() == {"points": [[1, 2]]}


@pytest.mark.parametrize(
    ("data", "files", "words"),
    [
        ({"text": "coin"}, {"x": ("", b"")}, "exactly one of image_key and image"),
        ({"text": "coin", "image_key": KEY}, FILE, "not both"),
        ({"text": "coin"}, {"image": ("a.png", b"")}, "the image is empty"),
        ({"text": "coin"}, {"image": ("a.png", b"no image")}, "format is unknown"),
        ({"text": "coin", "exemplars": "here"}, FILE, "the field 'exemplars' is not valid JSON"),
        ({"text": '["coin"'}, FILE, "the field 'text' is not valid JSON"),
        ({"concepts": '[{"text": "a", "text": "b"}]'}, FILE, "'text' appears twice"),
        ({"text": "coin", "colour": "3"}, FILE, "unknown key 'colour'"),
        ({"text": "coin", "exemplars": "[[0, 0, 50, 2]]"}, FILE, "reaches outside the image of 11 x 5"),
        ({}, FILE, "prompt is empty"),
        ({"image": "text"}, {"x": ("", b"")}, "image must be a file"),
    ],
)
def test_forms_that_are_wrong(data: dict[str, str], files: Any, words: str) -> None:
    there = fake()
    assert words in refusal(ask("POST", "/v1/segment", there, data=data, files=files), 400, "invalid_input")
    assert there.transport.calls == []


# which model


@pytest.mark.parametrize(
    ("served", "missing", "name"),
    [
        ({**DEAF, "sam3": REAL}, set(), "sam3"),
        ({**DEAF, "sam3": TOY, "sam3_full": REAL}, set(), "sam3_full"),
        ({**DEAF, "sam3": TOY}, set(), "sam3"),
        ({**DEAF, "sam3": REAL, "sam3_shapes": TOY}, {"sam3"}, "sam3_shapes"),
        (DEAF, set(), "sam2"),  # which then says what to set up
    ],
    ids=["the only one", "no toy", "a toy for want of others", "one that loads", "none"],
)
def test_words_without_a_model(served: Mapping[str, ModelSpec], missing: set[str], name: str) -> None:
    assert choose(served, None, missing, kind="text").name == name


def test_a_toy_is_not_the_default_for_clicks() -> None:
    assert choose({"sam3": TOY, "sam2.1_large": DEAF["sam2.1_large"]}, None).name == "sam2.1_large"
    assert choose({"sam3": TOY}, None).name == "sam3"
    assert choose({"sam3": TOY, "sam2": SPEC}, "sam3").name == "sam3"


def test_a_model_that_is_named_must_take_words() -> None:
    there = fake()
    request = {"image_key": KEY, "text": "coin"}
    for more, served in (({"model": "sam2"}, there), ({}, fake(**DEAF))):
        message = refusal(ask("POST", "/v1/segment", served, json=request | more), 422, "unsupported")
        assert message == (
            "sam2:tiny takes points, boxes and masks, not text or exemplars: set up a model that does, for example "
            "with `triton-sam setup sam3`"
        )
        assert served.transport.calls == []
    # a field that is null is none
    assert (
        ask("POST", "/v1/segment", there, json={"image_key": KEY, "points": [[1, 1]], "text": None}).status_code == 200
    )
    assert there.transport.calls[0].model == "sam2"


@pytest.mark.parametrize(
    ("prompt", "helps"),
    [
        ({"text": "coin"}, True),
        ({"text": "coin", "model": "sam3"}, False),
        ({"points": [[1, 1]]}, False),
    ],
    ids=str,
)
def test_words_on_an_image_of_another_models_default(prompt: dict[str, Any], helps: bool) -> None:
    """Without a model, an image goes to the default for clicks, and its key means nothing to the one for words."""
    there = fake()
    sentence = "image_key 'a' is unknown here or has expired: send the image again"

    def expired(call: Call) -> Outputs:
        raise ImageExpired(sentence)

    there.transport.answer = expired
    message = refusal(ask("POST", "/v1/segment", there, json={"image_key": KEY, **prompt}), 404, "image_expired")
    assert message == sentence + (", and name the model in both requests, for example sam3" if helps else "")


def test_which_models_take_text() -> None:
    rows = ask("GET", "/models", fake()).json()
    assert {row["name"]: "text" in row["prompts"] for row in rows} == {
        "sam2": False,
        "sam2.1_large": False,
        "sam3": True,
    }


def test_the_documentation_says_it() -> None:
    page = Path(__file__).parents[3].joinpath("docs/reference/http.md").read_text()
    for field in ("text", "exemplars", "exemplar_labels", "concepts", "score_threshold", "max_instances"):
        assert f"`{field}`" in page
