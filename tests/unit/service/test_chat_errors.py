from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.unit.service.chat_helpers import PATH, completion, events, param
from tests.unit.service.helpers import (
    Fake,
    ask,
    image_file,
    piece,
    refusal,
)
from tests.unit.service.test_chat_messages import ASKED, chat, text, user
from triton_sam import errors
from triton_sam.service.chat import completions as service_chat
from triton_sam.service.chat.remote_images import RemoteImages


def test_models_that_are_not_there() -> None:
    for name in ("gpt-4o", "sam2", "talker_stream"):
        answer = completion(chat() | {"model": name})
        assert "talker, single, finder" in refusal(answer, 404, "model_not_found")
        assert param(answer) == "model"
    answer = completion(chat(), Fake(vlms={}))
    assert "triton-sam setup" in refusal(answer, 404, "model_not_found")


def test_a_conversation_with_a_model_that_follows_none() -> None:
    fake = Fake()
    messages = (ASKED, {"role": "assistant", "content": "A cat"}, {"role": "user", "content": "Why?"})
    answer = completion(chat(*messages) | {"model": "single"}, fake)
    assert "one question at a time" in refusal(answer, 400, "invalid_input")
    assert param(answer) == "messages"
    assert fake.transport.streams == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"model": "talker"'])
def test_bodies_that_are_no_question(body: bytes) -> None:
    answer = ask("POST", PATH, content=body)
    assert '"messages"' in refusal(answer, 400, "invalid_input")


def test_limits() -> None:
    answer = completion(chat(), vlm_max_prompt_bytes=5)
    refusal(answer, 413, "too_large")
    assert param(answer) == "messages"
    answer = completion(chat(max_tokens=5), vlm_max_new_tokens=4)
    assert "1 to 4" in refusal(answer, 400, "invalid_input")
    assert param(answer) == "max_tokens"
    refusal(ask("POST", PATH, content=b'{"a": [' + b"[]," * 60_000 + b"]}"), 413, "too_large")
    for limit in ({"max_image_bytes": 5}, {"max_image_pixels": 5}):
        answer = completion(chat(), **limit)
        refusal(answer, 413, "too_large")
        assert param(answer) == "messages[0].content[1].image_url.url"


def test_an_image_that_is_none() -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = completion(chat(user(text("?"), broken)))
    assert "format is unknown" in refusal(answer, 400, "invalid_input")
    assert param(answer) == "messages[0].content[1].image_url.url"


def test_an_image_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = chat(user(text("?"), {"type": "image_url", "image_url": {"url": "https://a.example/cat.png"}}))
    assert "data:image/png;base64" in refusal(completion(asked), 400, "invalid_input")

    async def fetch(self: RemoteImages, url: str) -> bytes:
        assert url == "https://a.example/cat.png"
        assert self.max_bytes == 12345
        return image_file()

    monkeypatch.setattr(RemoteImages, "fetch", fetch)
    fake = Fake()
    assert completion(asked, fake, remote_images=True, max_image_bytes=12345).status_code == 200
    assert fake.transport.streams[0].inputs["image"].tobytes() == image_file()


def test_an_address_that_is_private() -> None:
    asked = chat(user(text("?"), {"type": "image_url", "image_url": {"url": "https://169.254.169.254/"}}))
    answer = completion(asked, remote_images=True)
    assert "no public address" in refusal(answer, 400, "invalid_input")
    assert param(answer) == "messages[0].content[1].image_url.url"


def test_too_many_addresses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(self: RemoteImages, url: str) -> bytes:
        raise errors.QueueFull("4 images are being fetched already: try again in a moment")

    monkeypatch.setattr(RemoteImages, "fetch", fetch)
    asked = chat(user(text("?"), {"type": "image_url", "image_url": {"url": "https://a.example/cat.png"}}))
    answer = completion(asked, remote_images=True)
    assert "4 images" in refusal(answer, 429, "queue_full")
    assert param(answer) is None


@pytest.mark.parametrize("field", [None, "seed"])
def test_only_faults_of_the_image_are_blamed_on_it(field: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*question: Any, **options: Any) -> Any:
        raise errors.InvalidInput("seed is no number that fits: send a smaller one", field=field)

    monkeypatch.setattr(service_chat, "vlm_call", refuse)
    answer = completion(chat())
    assert "smaller" in refusal(answer, 400, "invalid_input")
    assert param(answer) == field


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidInput("too hot"), 400, "invalid_input"),
        (errors.QueueFull("full"), 429, "queue_full"),
        (errors.Unavailable("talker is loading, 12 s so far: try again"), 503, "unavailable"),
        (errors.ServerUnreachable("nothing at 10.1.2.3"), 503, "unavailable"),
        (errors.InternalError("in /srv/10.1.2.3"), 500, "internal_error"),
        (RuntimeError("10.1.2.3"), 500, "internal_error"),
    ],
)
def test_what_goes_wrong_before_the_first_piece(error: Exception, status: int, code: str, stream: bool) -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [error]
    answer = completion(chat(stream=stream), fake)
    assert "10.1.2.3" not in refusal(answer, status, code)
    assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([piece("a"), errors.InternalError("in /srv/models")], "internal_error"),
        ([piece("a"), RuntimeError("in /srv/models")], "internal_error"),
        ([piece("a"), errors.Unavailable("it stops")], "unavailable"),
        ([piece("a")], "internal_error"),
        ([piece("a"), piece("b", "stop", usage_json=3)], "internal_error"),
        ([piece("a"), {"generated_text": np.array([b"\xff"], object)}], "internal_error"),
    ],
)
def test_what_goes_wrong_later(pieces: list[Any], code: str, caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: pieces
    answer = completion(chat(stream=True), fake)
    assert answer.status_code == 200
    *chunks, last = events(answer)
    assert chunks[1]["choices"][0]["delta"] == {"content": "a"}
    assert set(last) == {"error"}
    assert last["error"]["code"] == code
    assert last["error"]["type"] == "server_error"
    assert "/srv" not in last["error"]["message"]
    with caplog.at_level(logging.CRITICAL):
        whole = completion(chat(), fake)
    refusal(whole, 503 if code == "unavailable" else 500, code)


def test_no_pieces_at_all() -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: []
    for stream in (False, True):
        refusal(completion(chat(stream=stream), fake), 500, "internal_error")


def test_a_failure_after_the_last_piece_is_ignored() -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [piece("a", "stop"), errors.InternalError("late")]
    assert completion(chat(), fake).status_code == 200
    assert events(completion(chat(stream=True), fake))[-1] == "[DONE]"
