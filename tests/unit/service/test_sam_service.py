from __future__ import annotations

import asyncio
import base64
import gzip
import uuid
from typing import Any

import httpx
import numpy as np
import pytest

from tests.unit.service.helpers import (
    EMBEDDING,
    HEIGHT,
    MASK,
    SEGMENTERS,
    WIDTH,
    Fake,
    ask,
    client_of,
    image_file,
    refusal,
)
from triton_sam.service.routes.embedding_models import EmbeddingModels

IMAGE = {"image": ("a.png", image_file())}
TEXT = base64.b64encode(EMBEDDING.astype("<f4").tobytes())
PLACE = {"x": "3", "y": "2", "img_x": str(WIDTH), "img_y": str(HEIGHT)}


def test_an_embedding_as_text() -> None:
    fake = Fake()
    answer = ask("POST", "/embedded_model", fake, files=IMAGE)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "content-encoding" not in answer.headers
    assert answer.content == TEXT
    [call] = fake.transport.calls
    assert call.model == "sam2"
    assert list(call.outputs) == ["embedding"]
    assert call.inputs["image"].tobytes() == IMAGE["image"][1]


def test_compressed() -> None:
    async def run() -> tuple[httpx.Headers, bytes]:
        async with (
            client_of(Fake()) as client,
            client.stream("POST", "/embedded_model?encoding=compress", files=IMAGE) as answer,
        ):
            return answer.headers, b"".join([chunk async for chunk in answer.aiter_raw()])

    headers, raw = asyncio.run(run())
    assert headers["content-type"] == "application/gzip"
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == TEXT
    refusal(ask("POST", "/embedded_model?encoding=zip", files=IMAGE), 400, "invalid_input")


@pytest.mark.parametrize("version", ["sam2.1:large", "sam2.1_large"])
def test_the_model_may_be_named(version: str) -> None:
    fake = Fake()
    ask("POST", "/embedded_model", fake, files=IMAGE, data={"model_version": version})
    ask("POST", "/prediction", fake, files=IMAGE, data={"model_version": version, "x": "1", "y": "1"})
    ask("POST", "/from_model", fake, files={"model": ("m", TEXT)}, data={"model_version": version, **PLACE})
    assert [call.model for call in fake.transport.calls] == ["sam2.1_large"] * 3
    refusal(ask("POST", "/embedded_model", files=IMAGE, data={"model_version": "sam7"}), 404, "not_found")


@pytest.mark.parametrize(
    ("word", "wins"),
    [
        ("true", True),
        ("True", True),
        ("1", True),
        ("yes", True),
        ("on", True),
        ("false", False),
        ("0", False),
        ("", False),
    ],
)
def test_words_for_cancel_pending(word: str, wins: bool) -> None:
    fake = Fake()
    answer = ask("POST", "/embedded_model", fake, files=IMAGE, data={"session_id": "me", "cancel_pending": word})
    assert answer.status_code == 200
    assert fake.transport.calls[0].parameters.get("latest_wins", False) is wins


def test_a_word_that_is_neither() -> None:
    answer = ask("POST", "/embedded_model", files=IMAGE, data={"cancel_pending": "perhaps"})
    assert "'perhaps'" in refusal(answer, 400, "invalid_input")


def test_a_newer_image_cancels_what_waits() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> tuple[httpx.Response, httpx.Response]:
        async with client_of(fake) as client:
            session = {"session_id": "me"}
            first = asyncio.create_task(client.post("/embedded_model", files=IMAGE, data=session))
            await fake.transport.reached(calls=1)
            newer = {**session, "cancel_pending": "true"}
            second = asyncio.create_task(client.post("/embedded_model", files=IMAGE, data=newer))
            cancelled = await first
            fake.transport.release()
            return cancelled, await second

    cancelled, answered = asyncio.run(run())
    refusal(cancelled, 499, "cancelled")
    assert cancelled.headers["cancelled-by-client"] == "1"
    assert answered.status_code == 200


@pytest.mark.parametrize("how", ["form", "urlencoded", "query", "json", "embedded_model"])
def test_a_session_is_cancelled(how: str) -> None:
    fake = Fake()
    fake.transport.hold()
    ways: dict[str, dict[str, Any]] = {
        "form": {"url": "/cancel_pending", "files": {"session_id": (None, "me")}},
        "urlencoded": {"url": "/cancel_pending", "data": {"session_id": "me"}},
        "query": {"url": "/cancel_pending?session_id=me"},
        "json": {"url": "/cancel_pending", "json": {"session_id": "me"}},
        "embedded_model": {"url": "/embedded_model", "files": {"session_id": (None, "me")}},
    }

    async def run() -> tuple[httpx.Response, httpx.Response]:
        async with client_of(fake) as client:
            waiting = asyncio.create_task(client.post("/embedded_model", files=IMAGE, data={"session_id": "me"}))
            await fake.transport.reached(calls=1)
            answer = await client.post(**ways[how])
            cancelled = await waiting
            await fake.transport.reached(cancels=1)
            fake.transport.release()
            return answer, cancelled

    answer, cancelled = asyncio.run(run())
    assert answer.status_code == 200
    assert answer.json() == {"session_id": "me", "cancelled": 1}
    refusal(cancelled, 499, "cancelled")


def test_nothing_to_cancel() -> None:
    assert ask("POST", "/cancel_pending", data={"session_id": "me"}).json() == {"session_id": "me", "cancelled": 0}
    refusal(ask("POST", "/cancel_pending"), 400, "invalid_input")
    refusal(ask("POST", "/cancel_pending", json=[]), 400, "invalid_input")
    refusal(ask("POST", "/embedded_model", data={"model_version": "sam2"}), 400, "invalid_input")


def test_new_sessions() -> None:
    names = {ask("GET", "/new_session_id").text for _ in range(3)}
    assert len({uuid.UUID(name) for name in names}) == 3


@pytest.mark.parametrize("data", [TEXT, gzip.compress(TEXT, 1), TEXT + b"\r\n"])
def test_a_click_on_an_embedding(data: bytes) -> None:
    fake = Fake()
    answer = ask("POST", "/from_model", fake, files={"model": ("m", data)}, data=PLACE)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == MASK
    [call] = fake.transport.calls
    assert call.inputs["embedding"].dtype == np.float32
    np.testing.assert_array_equal(call.inputs["embedding"], EMBEDDING)
    assert fake.transport.prompt() == {
        "points": [[3, 2]],
        "labels": [1],
        "image_size": [WIDTH, HEIGHT],
        "format": "png",
    }


def test_the_maker_of_an_embedding_is_remembered() -> None:
    fake = Fake()

    async def run() -> None:
        async with client_of(fake) as client:
            made = await client.post("/embedded_model", files=IMAGE, data={"model_version": "sam2.1:large"})
            clicked = await client.post("/from_model", files={"model": ("m", made.content)}, data=PLACE)
            assert clicked.status_code == 200

    asyncio.run(run())
    assert [call.model for call in fake.transport.calls] == ["sam2.1_large"] * 2


def test_only_the_last_makers_are_remembered() -> None:
    embedding_models = EmbeddingModels()
    for index in range(1000):
        embedding_models.remember(str(index), "sam2")
    assert embedding_models.model_of("999") == "sam2"
    assert embedding_models.model_of("0") is None


@pytest.mark.parametrize(
    ("data", "change", "status", "words"),
    [
        (b"", {}, 400, "bytes"),
        (b"no base64!", {}, 400, "not valid base64"),
        (TEXT[:400], {}, 400, "float32"),
        (TEXT, {"model_version": "sam3"}, 400, "model_version"),
        (base64.b64encode(np.full(EMBEDDING.shape, np.nan, "<f4").tobytes()), {}, 400, "not finite"),
        (b"\x1f\x8bdamaged", {}, 400, "not a valid gzip"),
        (gzip.compress(bytes(64 * 1024 * 1024), 1), {}, 413, "decompresses to more"),
        (TEXT * 4, {}, 413, "more than"),
        (TEXT, {"x": "7"}, 400, "outside the image of 6 x 4"),
        (TEXT, {"y": "-1"}, 400, "outside the image of 6 x 4"),
        (TEXT, {"x": "1.5"}, 400, "x must be a whole number"),
        (TEXT, {"x": "٣"}, 400, "x must be a whole number"),
        (TEXT, {"y": "9" * 400}, 400, "y must have at most"),
        (TEXT, {"img_x": "0"}, 400, "image_size"),
        (TEXT, {"img_y": ""}, 400, "no img_y"),
        (TEXT, {"img_x": "99999", "img_y": "99999"}, 413, "pixels"),
    ],
)
def test_clicks_that_are_wrong(data: bytes, change: dict[str, str], status: int, words: str) -> None:
    fake = Fake()
    answer = ask("POST", "/from_model", fake, files={"model": ("m", data)}, data=PLACE | change)
    assert words in refusal(answer, status, "too_large" if status == 413 else "invalid_input")
    assert fake.transport.calls == []


def test_an_image_and_a_click_in_one() -> None:
    fake = Fake()
    answer = ask("POST", "/prediction", fake, files=IMAGE, data={"x": "3", "y": "2"})
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == MASK
    assert fake.transport.prompt() == {"points": [[3, 2]], "labels": [1], "format": "png"}


@pytest.mark.parametrize(
    "data", [{"x": "3"}, {"x": "a", "y": "2"}, {"x": "3", "y": "99"}, {"x": "3", "y": "2", "model_version": "\x00"}]
)
def test_predictions_that_are_wrong(data: dict[str, str]) -> None:
    fake = Fake()
    refusal(ask("POST", "/prediction", fake, files=IMAGE, data=data), 400, "invalid_input")
    assert fake.transport.calls == []


def test_embeddings_of_another_size() -> None:
    answer = ask("POST", "/embedded_model", files=IMAGE, data={"model_version": "sam3"})
    shape = dict(SEGMENTERS["sam3"].encoder.outputs)[SEGMENTERS["sam3"].encoder.embedding]
    assert np.frombuffer(base64.b64decode(answer.content), "<f4").size == np.prod(shape)
