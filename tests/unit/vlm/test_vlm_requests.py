"""Requests to a vision-language model: what is refused, with which sentence, and that nothing else ever is raised."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from triton_sam.backend.vlm_requests import VlmRequest
from triton_sam.engines.vlm.base import Message
from triton_sam.errors import InvalidInput, TooLarge, TritonSamError, Unsupported
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_specs import Task
from triton_sam.settings import Settings

SETTINGS = Settings(vlm_max_prompt_bytes=200, vlm_max_new_tokens=50, vlm_default_new_tokens=20, max_image_bytes=10_000)


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, "PNG")
    return buffer.getvalue()


def text(value: str | bytes) -> np.ndarray:
    return np.array([value if isinstance(value, bytes) else value.encode()], dtype=object)


def arrays(**changes: Any) -> dict[str, Any]:
    """A good request with some inputs changed; None leaves one out."""
    good = {"image": np.frombuffer(png(), np.uint8), "prompt": text("What is it?"), **changes}
    return {name: value for name, value in good.items() if value is not None}


def chat(*turns: tuple[str, Any]) -> np.ndarray:
    return text(json.dumps([{"role": role, "content": content} for role, content in turns]))


def asked(inputs: Mapping[str, Any], model: str = "vlm:kosmos2") -> Any:
    return VlmRequest(inputs, SETTINGS, get_vlm(model)).question()


def test_tasks() -> None:
    assert asked(arrays()).task is Task.ANSWER
    assert asked(arrays(task=text("answer")), "vlm:llava").task is Task.ANSWER
    for task in ("detect", "ground"):
        assert asked(arrays(task=text(task))).task is Task(task)
    assert asked(arrays(task=text("point")), "vlm:moondream2").task is Task.POINT
    with pytest.raises(Unsupported, match="llava answers in words and gives no places: `triton-sam models` has others"):
        asked(arrays(task=text("ground")), "vlm:llava")
    with pytest.raises(Unsupported, match="kosmos2 does not do the task point: choose detect and ground"):
        asked(arrays(task=text("point")))
    for wrong in ("", "Detect", "x" * 9999):
        with pytest.raises(InvalidInput, match="task is one of answer, detect, point, ground, not") as refused:
            asked(arrays(task=text(wrong)))
        assert len(str(refused.value)) < 120


def test_a_plain_question() -> None:
    question = asked(arrays())
    assert (question.image.size, question.image.mode) == ((8, 6), "RGB")
    assert question.messages == (Message("user", "What is it?"),)
    assert (question.options.max_new_tokens, question.options.temperature, question.options.top_p) == (20, 0.0, 1.0)
    assert question.options.seed is None
    assert question.options.stop == ()


def test_all_options() -> None:
    question = asked(
        arrays(
            max_new_tokens=np.array([7], np.int32),
            temperature=np.array([0.5], np.float32),
            top_p=np.array([0.25], np.float32),
            seed=np.array([-(2**63)], np.int64),
            stop=np.array(["é".encode(), b"\n"], dtype=object),
        )
    )
    options = question.options
    assert (options.max_new_tokens, options.temperature, options.top_p) == (7, 0.5, 0.25)
    assert (options.seed, options.stop) == (-(2**63), ("é", "\n"))


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_the_same_image_has_the_same_key_however_it_is_sent(prefix: str) -> None:
    encoded = text(prefix + base64.b64encode(png()).decode())
    keys = {asked(arrays()).image_key, asked(arrays(image=None, image_b64=encoded)).image_key}
    assert len(keys) == 1
    assert asked(arrays(image=np.frombuffer(png("blue"), np.uint8))).image_key not in keys


def test_what_the_system_says_goes_before_the_first_question() -> None:
    turns = chat(("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"))
    assert asked(arrays(prompt=None, messages_json=turns)).messages == (
        Message("user", "Be brief.\na"),
        Message("assistant", "b"),
        Message("user", "c"),
    )


REFUSED = {
    "no image": (arrays(image=None), "exactly one of image"),
    "two images": (arrays(image_b64=text("aGk=")), "exactly one of image and image_b64, not both"),
    "an empty image": (arrays(image=np.zeros(0, np.uint8)), "the image is empty"),
    "no picture": (arrays(image=np.zeros(10, np.uint8)), "format is unknown"),
    "no base64": (arrays(image=None, image_b64=text("***")), "image_b64 is not base64"),
    "two base64": (arrays(image=None, image_b64=np.array([b"a", b"b"], dtype=object)), "one string of shape"),
    "a cut picture": (arrays(image=np.frombuffer(png()[:45], np.uint8)), "damaged or cut short"),
    "no prompt": (arrays(prompt=None), "exactly one of prompt and messages_json"),
    "two prompts": (arrays(messages_json=chat(("user", "x"))), "not both"),
    "an empty prompt": (arrays(prompt=text(" \n")), "the prompt is empty"),
    "no UTF-8": (arrays(prompt=text(b"\xff")), "prompt is not valid UTF-8"),
    "no JSON": (arrays(prompt=None, messages_json=text("{")), "messages_json is a list like"),
    "deep JSON": (arrays(prompt=None, messages_json=text("[" * 199)), "messages_json is a list like"),
    "a number": (arrays(prompt=None, messages_json=text("3")), "messages_json is a list like"),
    "no roles": (arrays(prompt=None, messages_json=text('[{"content": "x"}]')), "messages_json is a list like"),
    "texts": (arrays(prompt=None, messages_json=text('["x"]')), "messages_json is a list like"),
    "an empty list": (arrays(prompt=None, messages_json=text("[]")), "must alternate"),
    "only the system": (arrays(prompt=None, messages_json=chat(("system", "x"))), "must alternate"),
    "another role": (arrays(prompt=None, messages_json=chat(("tool", "x"))), "a message needs a role"),
    "a role that is a list": (arrays(prompt=None, messages_json=chat((["user"], "x"))), "a message needs a role"),  # type: ignore[arg-type]
    "content that is no text": (arrays(prompt=None, messages_json=chat(("user", [1]))), "a message needs a role"),
    "assistant first": (arrays(prompt=None, messages_json=chat(("assistant", "x"), ("user", "y"))), "must alternate"),
    "assistant last": (arrays(prompt=None, messages_json=chat(("user", "x"), ("assistant", "y"))), "must alternate"),
    "user twice": (arrays(prompt=None, messages_json=chat(("user", "x"), ("user", "y"))), "must alternate"),
    "an empty last word": (
        arrays(prompt=None, messages_json=chat(("user", "x"), ("assistant", "y"), ("user", " "))),
        "the prompt is empty",
    ),
    "no tokens": (arrays(max_new_tokens=np.array([0], np.int32)), "max_new_tokens is a number from 1 to 50, not 0"),
    "too many tokens": (arrays(max_new_tokens=np.array([51], np.int32)), "max_new_tokens is a number from 1 to 50"),
    "two numbers": (arrays(max_new_tokens=np.array([5, 6], np.int32)), "one number of shape"),
    "no number": (arrays(max_new_tokens=np.zeros(0, np.int32)), "one number of shape"),
    "cold": (arrays(temperature=np.array([-0.1], np.float32)), "temperature is a number from 0 to 2"),
    "hot": (arrays(temperature=np.array([2.1], np.float32)), "temperature is a number from 0 to 2"),
    "nan": (arrays(temperature=np.array([np.nan], np.float32)), "temperature is a finite number"),
    "infinite": (arrays(top_p=np.array([np.inf], np.float32)), "top_p is a finite number"),
    "no top_p": (arrays(top_p=np.array([0], np.float32)), "top_p is a number above 0"),
    "high top_p": (arrays(top_p=np.array([1.1], np.float32)), "top_p is a number above 0"),
    "an empty stop": (arrays(stop=np.array([b""], dtype=object)), "stop has at most 8 texts"),
    "a long stop": (arrays(stop=np.array([b"x" * 201], dtype=object)), "stop has at most 8 texts"),
    "many stops": (arrays(stop=np.array([b"x"] * 9, dtype=object)), "stop has at most 8 texts"),
    "a stop that is no text": (arrays(stop=np.array([b"\xff"], dtype=object)), "stop is not valid UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    inputs, sentence = REFUSED[name]
    with pytest.raises(InvalidInput, match=sentence):
        asked(inputs)


def test_too_large() -> None:
    with pytest.raises(TooLarge, match="201 bytes and 200 are allowed"):
        asked(arrays(prompt=text("x" * 201)))
    with pytest.raises(TooLarge, match="the image has"):
        asked(arrays(image=np.zeros(10_001, np.uint8)))
    with pytest.raises(TooLarge, match="the image has"):
        asked(arrays(image=None, image_b64=text("A" * 14_000)))


def test_half_of_a_character_in_json_is_refused() -> None:
    """JSON can write a lone surrogate, which no tokenizer and no answer can carry."""
    with pytest.raises(InvalidInput):
        asked(arrays(prompt=None, messages_json=text('[{"role": "user", "content": "\\ud800?"}]')))


_ANY_ARRAY = st.one_of(
    st.lists(st.binary(max_size=12), max_size=3).map(lambda values: np.array(values, dtype=object)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda values: np.array(values, np.int64)),
    st.lists(st.floats(width=32), max_size=3).map(lambda values: np.array(values, np.float32)),
    st.binary(max_size=40).map(lambda data: np.frombuffer(data, np.uint8)),
    st.just(np.frombuffer(png(), np.uint8)),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["user", "role", "content"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=8,
).map(lambda document: text(json.dumps(document)))
#: The kinds that the model's config lets through.
_TYPED = {
    "image": st.binary(max_size=40).map(lambda data: np.frombuffer(data, np.uint8)) | st.just(arrays()["image"]),
    "image_b64": st.binary(max_size=12).map(text),
    "prompt": st.binary(max_size=12).map(text),
    "messages_json": _JSON | st.binary(max_size=20).map(text),
    "max_new_tokens": st.lists(st.integers(-5, 60), max_size=2).map(lambda values: np.array(values, np.int32)),
    "temperature": st.floats(width=32).map(lambda value: np.array([value], np.float32)),
    "top_p": st.floats(width=32).map(lambda value: np.array([value], np.float32)),
    "seed": st.integers(-(2**63), 2**63 - 1).map(lambda value: np.array([value], np.int64)),
    "stop": st.lists(st.binary(max_size=4), max_size=9).map(lambda values: np.array(values, dtype=object)),
}


@given(st.fixed_dictionaries({}, optional=_TYPED))
def test_no_request_that_triton_lets_through_raises_anything_else(inputs: dict[str, Any]) -> None:
    try:
        question = asked(inputs)
    except TritonSamError:
        return
    assert 1 <= question.options.max_new_tokens <= 50


@given(st.sampled_from(sorted(_TYPED)), _ANY_ARRAY)
def test_not_even_arrays_of_other_types(name: str, array: Any) -> None:
    with contextlib.suppress(TritonSamError):
        asked(arrays(**{name: array}))
