"""OpenAI's own package against the service in front of the real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.integration.vlm_serving import Says, data_url, picture, png
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
TOKENS = 24


@pytest.fixture(scope="module")
def client(vlm_server: RunningServer) -> Iterator[openai.OpenAI]:
    address = f"{vlm_server.urls['service']}/v1"
    with (
        httpx.Client(timeout=120, trust_env=False) as plain,
        openai.OpenAI(base_url=address, api_key="none", max_retries=0, http_client=plain) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def scene() -> tuple[bytes, str, str]:
    """An image, a question about it and the right answer."""
    from training.shapes.evaluate import held_out
    from training.shapes.scenes import draw

    scene, question = held_out(1)[0]
    return png(draw(scene)), question.text, question.answer


def message(text: str, image: bytes | None = None, role: str = "user") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if image is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": data_url(image)}})
    return {"role": role, "content": parts}


def create(client: openai.OpenAI, model: str, *messages: dict[str, Any], **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=list(messages), **options)


def test_what_is_served(client: openai.OpenAI) -> None:
    rows = {row.id: row for row in client.models.list()}
    assert set(rows) == {"llava", "kosmos2", "moondream2", "shapes"}
    assert [name for name, row in rows.items() if row.model_extra and row.model_extra["grounds"]] == ["kosmos2"]
    assert client.models.retrieve("vlm:llava").id == "llava"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("flamingo")


def test_a_right_answer_whole_and_in_pieces(client: openai.OpenAI, scene: tuple[bytes, str, str]) -> None:
    image, text, right = scene
    whole = create(client, "shapes", message(text, image))
    choice = whole.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (right, "assistant", "stop")
    assert whole.model == "shapes"
    assert whole.usage.prompt_tokens > 0
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    with create(client, "vlm:shapes", message(text, image), stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == right
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len(chunks) > 3, "word by word"

    options = {"stream": True, "stream_options": {"include_usage": True}}
    with create(client, "shapes", message(text, image), **options) as stream:
        *_, last = stream
    assert (last.choices, last.usage) == ([], whole.usage)


def test_options_go_the_whole_way(client: openai.OpenAI, says: Says) -> None:
    image, text = picture(1), "What is it?"
    expected = says["llava"](image, text, TOKENS)
    asked = message(text, png(image))
    whole = create(client, "llava", asked, max_tokens=TOKENS)
    assert whole.choices[0].message.content == expected
    short = create(client, "llava", asked, max_completion_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)
    stopped = create(client, "llava", asked, max_tokens=TOKENS, stop=expected[6:8])
    assert stopped.choices[0].message.content == expected[: expected.index(expected[6:8])].rstrip()
    drawn = [
        create(client, "llava", asked, max_tokens=TOKENS, temperature=1.0, seed=seed).choices[0].message.content
        for seed in (7, 7, 8)
    ]
    assert drawn[0] == drawn[1]
    assert len({*drawn, expected}) == 3


def test_a_conversation(client: openai.OpenAI, says: Says) -> None:
    image = picture(2)
    turns = ["What is it?", "a dog", "And its colour?"]
    expected = says["llava"](image, turns, TOKENS)
    told = [message(turns[0], png(image)), {"role": "assistant", "content": turns[1]}, message(turns[2])]
    assert create(client, "llava", *told, max_tokens=TOKENS).choices[0].message.content == expected
    with create(client, "llava", *told, max_tokens=TOKENS, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected
    with pytest.raises(openai.BadRequestError, match="one question at a time") as refused:
        create(client, "shapes", *told)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_a_status_a_code_and_a_field(client: openai.OpenAI, stream: bool) -> None:
    image = png(picture(1))
    cases: list[tuple[str, dict[str, Any], dict[str, Any], int, str, str | None]] = [
        ("shapes", message("What?"), {}, 400, "invalid_input", "messages"),
        ("flamingo", message("What?", image), {}, 404, "model_not_found", "model"),
        ("shapes", message("What?", b"no image"), {}, 400, "invalid_input", "messages[0].content[0].image_url.url"),
        ("shapes", message(" ", image), {}, 400, "invalid_input", "messages"),
        ("shapes", message("What?", image), {"temperature": 3}, 400, "invalid_input", "temperature"),
        ("shapes", message("x" * 40_000, image), {}, 413, "too_large", "messages"),
        ("llava", message("What is <image>?", image), {}, 400, "invalid_input", None),
    ]
    for model, asked, options, status, code, field in cases:
        with pytest.raises(openai.APIStatusError) as refused:
            create(client, model, asked, stream=stream, **options)
        error = refused.value
        assert (error.status_code, error.code, error.param) == (status, code, field), error
        assert error.type == "invalid_request_error"
        said = error.body["message"] if isinstance(error.body, dict) else ""
        assert said
        assert "\n" not in said


@pytest.mark.part("vlm")
def test_what_the_model_grounds_comes_with_its_answer(client: openai.OpenAI) -> None:
    """A random Kosmos-2 finds nothing, and says so; with boxes: tests/e2e/test_page_ask_real.py."""
    answer = create(client, "kosmos2", message("An image of", png(picture(1))), max_tokens=4)
    assert answer.choices[0].message.model_extra["entities"] == []
