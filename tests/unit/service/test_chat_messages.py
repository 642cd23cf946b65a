from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.service.helpers import VLMS, image_file
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.models.vlm_specs import MAX_TEMPERATURE
from triton_sam.service.chat.messages import Message, Options, check_fits, read_chat
from triton_sam.settings import Settings

URL = "data:image/png;base64," + base64.b64encode(image_file()).decode()
SETTINGS = Settings()
IMAGE = {"type": "image_url", "image_url": {"url": URL, "detail": "high"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


ASKED = user(text("What is this?"), IMAGE)


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "talker", "messages": list(messages or [ASKED]), **more}


def read(document: dict[str, Any], **values: Any) -> Any:
    return read_chat(document, Settings(**values) if values else SETTINGS)


def refused(document: dict[str, Any], field: str, **values: Any) -> str:
    with pytest.raises(InvalidInput) as found:
        read(document, **values)
    assert found.value.field == field, found.value
    message = str(found.value)
    assert "\n" not in message
    return message


def test_a_question() -> None:
    found = read(chat())
    assert found.model == "talker"
    assert found.messages == (Message("user", "What is this?"),)
    assert found.image == image_file()
    assert found.image_field == "messages[0].content[1].image_url.url"
    assert found.options == Options(temperature=0.0)
    assert (found.stream, found.include_usage) == (False, False)


def test_a_conversation() -> None:
    messages = (
        {"role": "system", "content": "Be brief."},
        user(IMAGE, text("What"), text("is it?")),
        {"role": "assistant", "content": "A cat.", "refusal": None, "name": "me"},
        {"role": "developer", "content": [text("In English.")]},
        {"role": "user", "content": "Which colour?"},
    )
    found = read(chat(*messages))
    assert found.messages == (
        Message("user", "Be brief.\n\nIn English.\n\nWhat\nis it?"),
        Message("assistant", "A cat."),
        Message("user", "Which colour?"),
    )
    check_fits(found, VLMS["talker"])
    with pytest.raises(InvalidInput, match="one question at a time") as refusal:
        check_fits(found, VLMS["single"])
    assert refusal.value.field == "messages"


def test_a_system_and_a_message_that_only_shows_the_image_are_no_conversation() -> None:
    found = read(chat({"role": "system", "content": "Be brief."}, user(IMAGE), user(text("What?"))))
    assert found.messages == (Message("user", "Be brief.\n\nWhat?"),)
    check_fits(found, VLMS["single"])


def test_options() -> None:
    found = read(
        chat(max_tokens=5, temperature=1, top_p=0.5, seed=-3, stop=["a", "b"], stream=True, user="me", metadata={}, n=1)
        | {"stream_options": {"include_usage": True}, "frequency_penalty": 0, "presence_penalty": 0.0, "tools": []}
        | {"response_format": {"type": "text"}, "logprobs": False, "service_tier": "auto", "modalities": ["text"]}
    )
    assert found.options == Options(5, 1.0, 0.5, -3, ("a", "b"))
    assert (found.stream, found.include_usage) == (True, True)
    assert read(chat(max_tokens=5, max_completion_tokens=6, stop="x")).options == Options(max_tokens=6, stop=("x",))
    nothing = dict.fromkeys(("max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n"))
    assert read(chat(**nothing, tools=None, response_format=None)).options == Options()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("model", (None, "", 3, "x" * 201, "a\nb", ["talker"])),
        ("max_tokens", (0, -1, 2049, 1.5, "5", True, 10**30)),
        ("max_completion_tokens", (0, "5")),
        ("temperature", (-0.1, 2.1, "1", True, float("nan"), float("inf"), [])),
        ("top_p", (0, 1.1, "1", False, 1e-50)),
        ("seed", (1.0, "1", 2**63, True)),
        ("stop", ("", [""], ["a"] * 5, 3, [3], {}, [["a"]])),
        ("stream", ("true", 1, [])),
        ("stream_options", ([], "x", True)),
        ("n", (0, 2, "1", True, 1.5)),
        ("response_format", ({"type": "json_object"}, "text", {}, [])),
        ("tools", ([{"type": "function"}], "x")),
        ("tool_choice", ("required", {})),
        ("functions", ([{}],)),
        ("logprobs", (True, 1, 0)),
        ("top_logprobs", (3,)),
        ("logit_bias", ({"1": 2},)),
        ("audio", ({},)),
        ("modalities", (["text", "audio"],)),
        ("frequency_penalty", (0.5, False)),
        ("messages", (None, [], {}, "hello", 3)),
    ],
)
def test_wrong_fields(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        assert field in refused(chat() | {field: value}, field)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("hello", "messages[0]"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        (user("hello"), "messages[0].content[0].type"),
        (user({"type": "input_audio"}), "messages[0].content[0].type"),
        (user({"type": ["text"]}), "messages[0].content[0].type"),
        (user({"type": "text", "text": 3}), "messages[0].content[0].text"),
        (user({"type": "image_url"}), "messages[0].content[0].image_url"),
        (user({"type": "image_url", "image_url": URL}), "messages[0].content[0].image_url"),
        (user({"type": "image_url", "image_url": {"url": 3}}), "messages[0].content[0].image_url"),
        ({"role": "assistant", "content": [IMAGE]}, "messages[0].content[0].image_url"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        (user(IMAGE, IMAGE), "messages[0].content[1].image_url"),
    ],
)
def test_wrong_messages(message: Any, field: str) -> None:
    refused(chat(message, ASKED), field)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([user(text("What?"))], "no image"),
        ([user(IMAGE)], "has no question"),
        ([user(IMAGE, text("  "))], "has no question"),
        ([user(text("a")), {"role": "assistant", "content": "b"}, user(IMAGE)], "has no question"),
        ([ASKED, {"role": "assistant", "content": "A"}], "of the assistant"),
        ([ASKED, {"role": "system", "content": "A"}], "of the system"),
        ([ASKED | {"content": [text("\ud800"), IMAGE]}], "half a character"),
    ],
)
def test_wrong_conversations(messages: list[Any], sentence: str) -> None:
    assert sentence in refused(chat(*messages), "messages")


@pytest.mark.parametrize("empty", ["", " \n", [text("")]])
def test_an_assistant_that_said_nothing(empty: Any) -> None:
    """Without its turn two questions would follow each other, and a model refuse that for no visible reason."""
    messages = (ASKED, {"role": "assistant", "content": empty}, user(text("Why?")))
    assert "leave the message out together with the question" in refused(chat(*messages), "messages[1].content")


def test_the_hottest_temperature() -> None:
    assert read(chat(temperature=MAX_TEMPERATURE)).options.temperature == MAX_TEMPERATURE
    assert f"from 0 to {MAX_TEMPERATURE:g}" in refused(chat(temperature=MAX_TEMPERATURE + 0.1), "temperature")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("data:image/png,abc", "without base64"),
        ("data:image/png;base64", "without base64"),
        ("data:image/png;base64,a b$", "not base64"),
        ("http://a.example/cat.png", "not a data URL"),
        ("file:///etc/passwd", "not a data URL"),
        ("", "not a data URL"),
        ("https://a.example/cat.png", "send the image itself as data:image/png;base64"),
    ],
)
def test_wrong_images(url: str, sentence: str) -> None:
    asked = user(text("a"), {"type": "image_url", "image_url": {"url": url}})
    assert sentence in refused(chat(asked), "messages[0].content[1].image_url.url")


def test_addresses_where_they_are_allowed() -> None:
    asked = user(text("a"), {"type": "image_url", "image_url": {"url": "HTTPS://a.example/cat.png"}})
    assert read(chat(asked), remote_images=True).image == "HTTPS://a.example/cat.png"
    asked = user(text("a"), {"type": "image_url", "image_url": {"url": "https://a.example/" + "a" * 5000}})
    refused(chat(asked), "messages[0].content[1].image_url.url", remote_images=True)


def test_upper_case_data_urls() -> None:
    asked = user(text("a"), {"type": "image_url", "image_url": {"url": "DATA:;BASE64," + URL.partition(",")[2]}})
    assert read(chat(asked)).image == image_file()


def test_length() -> None:
    assert read(chat(user(text("ä" * 10), IMAGE), stop="ab"), vlm_max_prompt_bytes=22)
    with pytest.raises(TooLarge, match="23 bytes, but at most 22") as found:
        read(chat(user(text("ä" * 10), IMAGE), stop="abc"), vlm_max_prompt_bytes=22)
    assert found.value.field == "messages"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "text", URL]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "image_url", "url"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["model", "messages", "stop", "seed", "n", "tools", "stream_options"]), JSON), JSON
)
def test_whatever_comes_is_read_or_refused(document: dict[str, Any], message: Any) -> None:
    for candidate in (document, chat(message), chat(user(message)), chat() | document):
        refusal = found = None
        try:
            found = read(candidate)
        except InvalidInput as error:
            refusal = error
        if refusal is None:
            assert found.messages[-1].role == "user"
            "".join(message.content for message in found.messages).encode()
        else:
            assert refusal.field
            assert str(refusal)
