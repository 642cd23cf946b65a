"""The clients of vision-language models, and the commands, through a real service."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cli.helpers import run_process
from tests.unit.client.memory_server import MemoryServer
from tests.unit.client.test_through_service import PICTURE, TOKEN, fake_of
from tests.unit.service.helpers import ENTITIES, TIMEOUT, Fake, listening, piece
from triton_sam import AsyncTritonVLMClient, TritonVLMClient
from triton_sam.client import vlm_client
from triton_sam.client.vlm_calls import Answer, Entity
from triton_sam.errors import (
    InternalError,
    InvalidInput,
    NotAuthorised,
    NotFound,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, str]]:
    fake = fake_of(MemoryServer())
    with listening(fake, token=TOKEN) as port:
        yield fake, f"http://127.0.0.1:{port}"


@pytest.fixture
def fake(shared: tuple[Fake, str]) -> Iterator[Fake]:
    fake = shared[0]
    pieces = fake.transport.pieces
    fake.transport.streams.clear()
    yield fake
    fake.transport.pieces = pieces


@pytest.fixture
def url(shared: tuple[Fake, str]) -> str:
    return shared[1]


@pytest.fixture
def client(url: str) -> Iterator[TritonVLMClient]:
    with TritonVLMClient(url, token=TOKEN, timeout=TIMEOUT) as client:
        yield client


def test_answers(client: TritonVLMClient, fake: Fake) -> None:
    assert client.infer("talker", PICTURE, "What?") == "a cat."
    assert client.answer("vlm:talker", PICTURE, "What?") == Answer("a cat.", "stop", 7, 3)
    assert list(client.stream("talker", PICTURE, "What?")) == ["a ", "cat", "."]
    (entry,) = ENTITIES
    found = client.answer("finder", PICTURE, "What?")
    assert found.entities == (Entity(entry["phrase"], (2, 5), ((0.0, 1.0, 2.0, 3.0),)),)


def test_the_same_with_asyncio(url: str, fake: Fake) -> None:
    async def ask() -> None:
        async with AsyncTritonVLMClient(url, token=TOKEN) as client:
            assert [text async for text in client.stream("talker", PICTURE, "What?")] == ["a ", "cat", "."]
            answers = await asyncio.gather(*(client.infer("talker", PICTURE, str(number)) for number in range(5)))
            assert answers == ["a cat."] * 5

    asyncio.run(ask())


def test_a_question_comes_as_it_is_sent(client: TritonVLMClient, fake: Fake) -> None:
    """With its image, its blanks, the options and the turns of a conversation."""
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0.7, "top_p": 0.9, "seed": -3, "stop": ["x", "yz"]}
    client.infer("talker", PICTURE, " What is ät? ", **options)
    turns = [{"role": role, "content": f"{role} {turn}"} for turn, role in enumerate(("user", "assistant", "user"))]
    client.infer("talker", PICTURE, turns)
    plain, talk = fake.transport.streams
    assert plain.inputs["image"].tobytes() == talk.inputs["image"].tobytes() == PICTURE
    assert plain.inputs["prompt"][0].decode() == " What is ät? "
    assert plain.inputs["stop"].tolist() == [b"x", b"yz"]
    for name, dtype in (
        ("max_new_tokens", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("seed", np.int64),
    ):
        assert plain.inputs[name].tolist() == np.array([options[name]], dtype).tolist()
    assert json.loads(talk.inputs["messages_json"][0]) == turns
    assert "prompt" not in talk.inputs


def test_leaving_a_stream_early_stops_the_generation(client: TritonVLMClient, fake: Fake) -> None:
    left = len(fake.transport.left)
    fake.transport.hold_before = 1
    with contextlib.closing(client.stream("talker", PICTURE, "What?")) as texts:  # type: ignore[type-var]
        assert next(texts) == "a "
    fake.transport.wait_for(lambda it: len(it.left) > left)
    fake.transport.release()
    assert client.infer("talker", PICTURE, "What?") == "a cat."


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([InvalidInput("too long")], InvalidInput),
        ([Unavailable("is loading")], Unavailable),
        ([InternalError("oh")], InternalError),
        ([piece("a"), Unavailable("has gone")], Unavailable),
        ([piece("a")], InternalError),
    ],
    ids=["invalid", "busy", "internal", "late", "incomplete"],
)
def test_errors(pieces: list[Any], error: type[TritonSamError], url: str, fake: Fake) -> None:
    fake.transport.pieces = lambda call: pieces
    with TritonVLMClient(url, token=TOKEN, retries=0) as client, pytest.raises(error):
        client.infer("talker", PICTURE, "What?")


def test_a_busy_model_is_asked_again_after_the_time_that_it_says(
    url: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    answers = iter([[Unavailable("is loading")], [piece("yes", "stop")]])
    fake.transport.pieces = lambda call: next(answers)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    options = vlm_client.retry_options
    monkeypatch.setattr(vlm_client, "retry_options", lambda *limits: options(*limits) | {"sleep": sleep})
    with TritonVLMClient(url, token=TOKEN) as client:
        assert client.infer("talker", PICTURE, "What?") == "yes"
    assert len(slept) == 1
    assert slept[0] >= 2, "the service's Retry-After"
    fake.transport.pieces = lambda call: [Unavailable("is loading")]
    with TritonVLMClient(url, token=TOKEN, timeout=1.5) as client, pytest.raises(Unavailable):
        client.infer("talker", PICTURE, "What?")
    assert len(slept) == 1, "a pause that does not fit into the timeout is not begun"


def test_what_is_not_served_and_who_is_not_let_in(client: TritonVLMClient, url: str, fake: Fake) -> None:
    with pytest.raises(NotFound, match="no vision-language model 'flamingo': available are talker, single, finder"):
        client.infer("flamingo", PICTURE, "What?")
    with TritonVLMClient(url) as stranger, pytest.raises(NotAuthorised, match="requires a token"):
        stranger.infer("talker", PICTURE, "What?")
    with TritonVLMClient("http://127.0.0.1:1", token=TOKEN) as lost, pytest.raises(ServerUnreachable):
        lost.infer("talker", PICTURE, "What?")


# the commands


def test_segment_and_ask(url: str, fake: Fake, tmp_path: Path) -> None:
    picture, result = tmp_path / "picture.png", tmp_path / "result.json"
    picture.write_bytes(PICTURE)
    words = ("segment", picture, "--point", "3,2", "--out", result, "--url", url)
    done = run_process(*words, "--token", TOKEN)
    assert (done.code, done.err) == (0, "")
    assert len(json.loads(result.read_text())["masks"]) == 1
    done = run_process("ask", picture, "What?", "--model", "talker", "--url", url, TRITON_SAM_TOKEN=TOKEN)
    assert (done.code, done.out, done.err) == (0, "a cat.\n", "")
    refused = run_process(*words)
    assert refused.code == 1
    assert "requires a token" in " ".join(refused.err.split())
    short = run_process(*words, TRITON_SAM_TOKEN="word")
    assert short.code == 1
    assert "a token must have at least 16 characters" in " ".join(short.err.split())
