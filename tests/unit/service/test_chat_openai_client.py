from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.unit.service.helpers import (
    ENTITIES,
    TIMEOUT,
    VLMS,
    Fake,
    listening,
    piece,
)
from tests.unit.service.test_chat_messages import IMAGE, text, user
from triton_sam import errors


@contextlib.contextmanager
def openai_client(fake: Fake, key: str = "none", **settings: Any) -> Iterator[openai.OpenAI]:
    with listening(fake, **settings) as port:
        here = openai.DefaultHttpxClient(trust_env=False)  # proxies of the environment are for elsewhere
        address = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=address, api_key=key, max_retries=0, timeout=TIMEOUT, http_client=here) as client:
            yield client


MESSAGES: Any = [user(text("What is this?"), IMAGE)]


def test_openais_client() -> None:
    with openai_client(Fake()) as client:
        whole = client.chat.completions.create(model="finder", messages=MESSAGES, max_tokens=20, temperature=0.5)
        assert whole.choices[0].message.content == "a cat."
        assert whole.choices[0].finish_reason == "stop"
        assert whole.choices[0].message.entities == ENTITIES  # type: ignore[attr-defined]
        assert whole.usage is not None
        assert whole.usage.total_tokens == 10
        stream = client.chat.completions.create(
            model="vlm:talker", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "a cat."
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert last.usage is not None
        assert (last.choices, last.usage.completion_tokens) == ([], 3)
        assert [row.id for row in client.models.list()] == list(VLMS)
        assert client.models.retrieve("talker").owned_by == "triton-sam"


def test_openais_client_leaves_a_stream() -> None:
    fake = Fake()
    fake.transport.hold_before = 1
    with openai_client(fake) as client:
        with client.chat.completions.create(model="talker", messages=MESSAGES, stream=True) as stream:
            assert next(stream).choices[0].delta.role == "assistant"
        fake.transport.wait_for(lambda it: len(it.left) == 1)


def test_openais_client_and_errors() -> None:
    fake = Fake()
    with openai_client(fake) as client:
        with pytest.raises(openai.BadRequestError, match="no image") as bad:
            client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "hello"}])
        assert (bad.value.code, bad.value.param, bad.value.type) == (
            "invalid_input",
            "messages",
            "invalid_request_error",
        )
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-4o")
        fake.transport.pieces = lambda call: [errors.QueueFull("too many questions wait: try again in a moment")]
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="too many questions"):
                client.chat.completions.create(model="talker", messages=MESSAGES, stream=stream)
        fake.transport.pieces = lambda call: [errors.Unavailable("talker is loading")]
        with pytest.raises(openai.InternalServerError, match="talker is loading"):
            client.chat.completions.create(model="talker", messages=MESSAGES)
        fake.transport.pieces = lambda call: [piece("a"), errors.Unavailable("talker has gone")]
        stream = client.chat.completions.create(model="talker", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="talker has gone"):
            list(stream)


def test_openais_client_and_the_token() -> None:
    with openai_client(Fake(), key="the-right-long-key", token="the-right-long-key") as client:
        assert client.models.list().data
        with pytest.raises(openai.AuthenticationError, match="token"):
            client.with_options(api_key="wrong").models.list()
