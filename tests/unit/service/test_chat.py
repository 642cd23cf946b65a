from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.service.chat_helpers import PATH, TOTAL, completion, events, param
from tests.unit.service.helpers import (
    ENTITIES,
    VLMS,
    Fake,
    ask,
    client_of,
    image_file,
    piece,
    refusal,
)
from tests.unit.service.test_chat_messages import ASKED, chat, text, user


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
    messages = [ASKED, {"role": "assistant", "content": "Größe"}, {"role": "user", "content": "Why?"}]
    options = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.25, "seed": 2**40, "stop": ["a", "ß"]}
    assert completion(chat(*messages, **options) | {"model": "vlm:talker"}, fake).json()["model"] == "talker"
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
        "tasks": ["detect", "ground"],
    }
    assert ask("GET", "/v1/models", Fake(vlms={})).json() == {"object": "list", "data": []}
    answer = ask("GET", "/v1/models/sam2")
    refusal(answer, 404, "model_not_found")
    assert param(answer) == "model"
