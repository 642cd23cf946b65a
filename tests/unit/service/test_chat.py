from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.service.helpers import (
    ENTITIES,
    TIMEOUT,
    USAGE,
    VLMS,
    Fake,
    ask,
    client_of,
    image_file,
    listening,
    piece,
    refusal,
)
from tests.unit.service.test_chat_messages import ASKED, IMAGE, chat, text, user
from triton_sam import errors
from triton_sam.service.chat import completions as service_chat
from triton_sam.service.chat.remote_images import RemoteImages

PATH = "/v1/chat/completions"
TOTAL = {**USAGE, "total_tokens": 10}


def completion(document: dict[str, Any], fake: Fake | None = None, **settings: Any) -> httpx.Response:
    return ask("POST", PATH, fake, settings=settings, json=document)


def param(answer: httpx.Response) -> str | None:
    found: str | None = answer.json()["error"]["param"]
    return found


def events(answer: httpx.Response | str) -> list[Any]:
    """What a stream of events carries; its form is checked on the way."""
    lines = (answer if isinstance(answer, str) else answer.text).split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


# -- answers ---------------------------------------------------------------------------------------------------


def test_an_answer() -> None:
    fake = Fake()
    answer = completion(chat(), fake)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document.pop("id").startswith("chatcmpl-")
    assert document.pop("created") > 1_700_000_000
    message = {"role": "assistant", "content": "a cat.", "refusal": None}
    assert document == {
        "object": "chat.completion",
        "model": "talker",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": TOTAL,
    }
    [call] = fake.transport.streams
    assert call.model == "talker_stream"
    assert call.outputs == ("generated_text", "finish_reason", "usage_json")
    assert call.inputs["image"].tobytes() == image_file()
    assert call.inputs["prompt"].tolist() == [b"What is this?"]
    assert set(call.inputs) == {"image", "prompt", "temperature"}
    assert call.inputs["temperature"].tolist() == [0.0]


def test_what_the_server_gets() -> None:
    fake = Fake()
    told = [ASKED, {"role": "assistant", "content": "Größe"}, {"role": "user", "content": "Why?"}]
    options = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.25, "seed": 2**40, "stop": ["a", "ß"]}
    assert completion(chat(*told, **options) | {"model": "vlm:talker"}, fake).json()["model"] == "talker"
    [call] = fake.transport.streams
    assert json.loads(call.inputs["messages_json"][0]) == [
        {"role": "user", "content": "What is this?"},
        {"role": "assistant", "content": "Größe"},
        {"role": "user", "content": "Why?"},
    ]
    assert "prompt" not in call.inputs
    sent = {name: (call.inputs[name].dtype, call.inputs[name].tolist()) for name in call.inputs}
    assert sent["max_new_tokens"] == (np.int32, [9])
    assert sent["temperature"] == (np.float32, [0.5])
    assert sent["top_p"] == (np.float32, [0.25])
    assert sent["seed"] == (np.int64, [2**40])
    assert sent["stop"] == (np.dtype(object), [b"a", "ß".encode()])


def test_phrases_with_boxes() -> None:
    fake = Fake()
    whole = completion(chat() | {"model": "finder"}, fake).json()
    assert whole["choices"][0]["message"]["entities"] == ENTITIES
    assert "entities_json" in fake.transport.streams[0].outputs
    *_, last, done = events(completion(chat(stream=True) | {"model": "finder"}))
    assert done == "[DONE]"
    assert last["choices"][0]["delta"] == {"entities": ENTITIES}


@pytest.mark.parametrize("include_usage", [False, True])
def test_pieces(include_usage: bool) -> None:
    answer = completion(chat(stream=True, stream_options={"include_usage": include_usage}))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    *chunks, done = events(answer)
    assert done == "[DONE]"
    if include_usage:
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], TOTAL)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", "talker")
    }
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [(choice["delta"], choice["finish_reason"]) for choice in choices] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "a "}, None),
        ({"content": "cat"}, None),
        ({"content": "."}, None),
        ({}, "stop"),
    ]


def test_a_cut_answer_and_outputs_that_are_left_out() -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [{"generated_text": piece("a")["generated_text"]}, piece("", "length")]
    document = completion(chat(), fake).json()
    assert document["choices"][0]["message"]["content"] == "a"
    assert document["choices"][0]["finish_reason"] == "length"


def test_tokens_are_counted() -> None:
    async def run() -> str:
        async with client_of(Fake()) as client:
            await client.post(PATH, json=chat())
            await client.post(PATH, json=chat(stream=True))
            await client.post(PATH, json=chat(user(text("?"))))
            return (await client.get("/metrics")).text

    families = {family.name: family.samples for family in text_string_to_metric_families(asyncio.run(run()))}
    counted = {
        (sample.labels["model"], sample.labels["kind"]): sample.value
        for sample in families["triton_sam_service_tokens"]
        if sample.name.endswith("_total")
    }
    assert counted == {("talker", "prompt"): 14, ("talker", "completion"): 6}


# -- refusals --------------------------------------------------------------------------------------------------


def test_models_that_are_not_there() -> None:
    for name in ("gpt-4o", "sam2", "talker_stream"):
        answer = completion(chat() | {"model": name})
        assert "talker, single, finder" in refusal(answer, 404, "model_not_found")
        assert param(answer) == "model"
    answer = completion(chat(), Fake(vlms={}))
    assert "triton-sam setup" in refusal(answer, 404, "model_not_found")


def test_a_conversation_with_a_model_that_follows_none() -> None:
    fake = Fake()
    told = (ASKED, {"role": "assistant", "content": "A cat"}, {"role": "user", "content": "Why?"})
    answer = completion(chat(*told) | {"model": "single"}, fake)
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


def test_a_failure_behind_the_last_piece_is_nobodys_business() -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [piece("a", "stop"), errors.InternalError("late")]
    assert completion(chat(), fake).status_code == 200
    assert events(completion(chat(stream=True), fake))[-1] == "[DONE]"


# -- the server, the clock and those who leave --------------------------------------------------------------------


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "failed"])
def test_no_work_while_the_server_is_not_ready(state: str) -> None:
    fake = Fake(state=state)
    for stream in (False, True):
        assert state in refusal(completion(chat(stream=stream), fake), 503, "unavailable")
    assert fake.transport.streams == []


@pytest.mark.parametrize("held_at", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_lost_server(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at

    async def run() -> httpx.Response:
        async with client_of(fake) as client:
            waiting = asyncio.create_task(client.post(PATH, json=chat(stream=stream)))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.streams)
            await asyncio.to_thread(fake.lose, "another died", "sam2")
            await asyncio.to_thread(fake.lose, "its process died", "talker_stream")
            answer = await waiting
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)
            return answer

    answer = asyncio.run(run())
    if stream and held_at:
        assert "its process died" in events(answer)[-1]["error"]["message"]
    else:
        assert "its process died" in refusal(answer, 503, "unavailable")


def test_an_answer_may_take_longer_than_other_requests() -> None:
    fake = Fake()
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake, service_seconds=0.05) as client:
            waiting = asyncio.create_task(client.post(PATH, json=chat()))
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            fake.transport.release()
            return await waiting

    assert asyncio.run(run()).status_code == 200


@pytest.mark.parametrize("held_at", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_but_not_for_ever(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at

    async def run() -> httpx.Response:
        async with client_of(fake, vlm_seconds=0.3) as client:
            answer = await client.post(PATH, json=chat(stream=stream))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)
            return answer

    answer = asyncio.run(run())
    if stream and held_at:
        assert events(answer)[-1]["error"]["code"] == "deadline_exceeded"
    else:
        assert "fewer tokens" in refusal(answer, 504, "deadline_exceeded")


def test_a_body_that_takes_too_long() -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    refusal(ask("POST", PATH, settings={"service_seconds": 0.05}, content=slowly()), 504, "deadline_exceeded")


def request_bytes(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    return b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(body), body)


@pytest.mark.parametrize("held_at", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_whoever_hangs_up_is_not_computed_for(stream: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at
    with listening(fake) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(request_bytes(chat(stream=stream)))
            fake.transport.wait_for(lambda it: len(it.streams) == 1)
            if stream and held_at:
                found = b""
                while b'"cat"' not in found:  # pieces come as soon as they are there
                    found += connection.recv(65536)
        fake.transport.wait_for(lambda it: len(it.left) == 1)
    assert fake.transport.run_out == []


@pytest.mark.parametrize("leaves", ["fails", "is cancelled"])
def test_the_work_ends_where_not_even_the_head_can_be_sent(leaves: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    kept = []  # or the garbage collector would close them
    pieces_of = service_chat._pieces

    def pieces(*given: Any) -> Any:
        kept.append(pieces_of(*given))
        return kept[-1]

    monkeypatch.setattr(service_chat, "_pieces", pieces)
    fake.transport.hold_before = 1
    body = json.dumps(chat(stream=True)).encode()
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": PATH, "client": None}
    scope |= {"headers": [], "query_string": b""}

    async def run() -> None:
        app = fake.app()
        sending = asyncio.Event()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for message in messages:
                return message
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sending.set()
            if leaves == "fails":
                raise OSError("gone")
            await asyncio.Event().wait()

        async with app.router.lifespan_context(app):
            task = asyncio.create_task(app(scope, receive, send))
            await sending.wait()
            if leaves == "is cancelled":
                task.cancel()
            # Only a stop cancels, and what it cuts off is told by a line in the log.
            with pytest.raises(OSError) if leaves == "fails" else contextlib.nullcontext():
                await task
            assert [found.ag_frame for found in kept] == [None]
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.left)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_complete_answer_is_not_cancelled(stream: bool) -> None:
    """On older servers a cancel that meets the end of its request can end the whole server."""
    fake = Fake()
    fake.transport.hold_before = 1
    fake.transport.pieces = lambda call: [piece("a", "stop"), piece("never read")]

    async def run() -> None:
        async with client_of(fake) as client:
            assert (await client.post(PATH, json=chat(stream=stream))).status_code == 200
            assert fake.transport.left == []
            fake.transport.release()
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.run_out)

    asyncio.run(run())
    assert fake.transport.left == []


def test_a_stop_of_the_service_ends_answers() -> None:
    fake = Fake()
    fake.transport.hold_before = 0

    async def run() -> httpx.Response:
        app = fake.app()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=TIMEOUT) as client:
            async with app.router.lifespan_context(app):
                waiting = asyncio.create_task(client.post(PATH, json=chat()))
                await asyncio.to_thread(fake.transport.wait_for, lambda it: it.streams)
            assert len(fake.transport.left) == 1
            return await waiting

    assert "stopping" in refusal(asyncio.run(run()), 503, "unavailable")


# -- models ----------------------------------------------------------------------------------------------------


def test_the_models() -> None:
    listed = ask("GET", "/v1/models").json()
    assert listed["object"] == "list"
    assert [row["id"] for row in listed["data"]] == list(VLMS)
    row = ask("GET", "/v1/models/vlm:finder").json()
    assert row.pop("created") > 1_700_000_000
    assert row == {
        "id": "finder",
        "object": "model",
        "owned_by": "triton-sam",
        "title": "The title of finder",
        "chats": False,
        "grounds": True,
    }
    assert ask("GET", "/v1/models", Fake(vlms={})).json() == {"object": "list", "data": []}
    answer = ask("GET", "/v1/models/sam2")
    refusal(answer, 404, "model_not_found")
    assert param(answer) == "model"


# -- OpenAI's own client ---------------------------------------------------------------------------------------


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
    with openai_client(Fake(), key="right", token="right") as client:
        assert client.models.list().data
        with pytest.raises(openai.AuthenticationError, match="token"):
            client.with_options(api_key="wrong").models.list()
