"""``/v1/ground``: what goes to the two models, what comes back, and everything that is refused before either works."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from typing import Any

import httpx
import numpy as np
import pytest

from tests.unit.service.helpers import (
    HEIGHT,
    KEY,
    REGIONS,
    SEGMENTERS,
    TIMEOUT,
    VLMS,
    WIDTH,
    Fake,
    FakeTransport,
    ask,
    client_of,
    image_file,
    listening,
    piece,
    refusal,
    result,
)
from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call, text_of, text_tensor
from triton_sam.core import masks
from triton_sam.errors import InternalError
from triton_sam.service.app import create_app
from triton_sam.service.gateway import user_session
from triton_sam.service.shared_state import SharedState
from triton_sam.service.siblings import CancelHere, Siblings
from triton_sam.settings import Settings

PATH = "/v1/ground"
IMAGE = image_file()
ASKED = {"image": base64.b64encode(IMAGE).decode(), "question": "where is the cat?"}


def answer(call: Call) -> Outputs:
    """As a segmenter: mask number n has n + 1 columns; the last one comes first."""
    prompt = json.loads(text_of(call.inputs, "prompt_json"))
    found = []
    for index in range(len(prompt["objects"])):
        mask = np.broadcast_to(np.arange(WIDTH) <= index, (HEIGHT, WIDTH))
        found.append(masks.encode(mask, prompt.get("format", "png")) | {"score": 0.5 + index / 100, "object": index})
    document = result(masks=found[::-1], mask=found[0], score=0.5)
    return {"result_json": text_tensor(json.dumps(document))}


@pytest.fixture
def fake() -> Fake:
    return Fake(FakeTransport(answer))


def ground(fake: Fake | None = None, settings: Any = None, **fields: Any) -> httpx.Response:
    """A good request with some fields changed; None leaves one out."""
    document = {name: value for name, value in (ASKED | fields).items() if value is not None}
    return ask("POST", PATH, fake or Fake(FakeTransport(answer)), settings=settings, json=document)


def test_what_is_said_comes_with_masks(fake: Fake) -> None:
    found = ground(fake, format="rle")
    assert found.status_code == 200, found.text
    document = found.json()
    regions = document.pop("regions")
    assert document == {
        "text": "a cat.",
        "model": "finder",
        "segmenter": "sam2",
        "width": WIDTH,
        "height": HEIGHT,
        "image_key": KEY,
        "found": 2,
    }
    assert [region["label"] for region in regions] == ["cat", "dog"]
    for number, region in enumerate(regions):
        assert {name: region[name] for name in REGIONS[number]} == REGIONS[number]
        assert region["score"] == 0.5 + number / 100
        assert (masks.decode(region["mask"]).sum(axis=1) == number + 1).all(), "each region has its own mask"


def test_what_the_models_are_asked(fake: Fake) -> None:
    assert ground(fake, segmenter="sam2.1:large", clean=4, format="bits", session_id="me").status_code == 200
    (question,) = fake.transport.streams
    assert question.model == "finder_stream"
    assert text_of(question.inputs, "prompt") == ASKED["question"]
    assert text_of(question.inputs, "task") == "ground"
    assert question.inputs["image"].tobytes() == IMAGE
    (call,) = fake.transport.calls
    assert call.model == "sam2.1_large"
    assert call.inputs["image"].tobytes() == IMAGE
    assert fake.transport.prompt() == {
        "objects": [{"box": [0.0, 1.0, 2.0, 3.0]}, {"points": [[5.0, 3.0]], "labels": [1]}],
        "format": "bits",
        "clean": 4,
    }


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({"object": "cat", "question": None}, "detect"),
        ({"object": "cat", "question": None, "task": "ground"}, "ground"),
        ({"task": "detect"}, "detect"),
        ({}, "ground"),
    ],
)
def test_tasks(fake: Fake, fields: dict[str, Any], task: str) -> None:
    assert ground(fake, **fields).status_code == 200
    (question,) = fake.transport.streams
    assert text_of(question.inputs, "task") == task
    assert text_of(question.inputs, "prompt") == (fields.get("object") or ASKED["question"])


def test_without_a_region_there_is_the_text(fake: Fake) -> None:
    fake.transport.pieces = lambda call: [piece("There is no "), piece("cat.", "stop", regions_json=[])]
    document = ground(fake).json()
    assert document["regions"] == []
    assert document["text"] == "There is no cat."
    assert (document["image_key"], document["width"], document["height"]) == (None, WIDTH, HEIGHT)
    assert fake.transport.calls == []


def test_no_more_regions_than_wanted(fake: Fake) -> None:
    document = ground(fake, max_regions=1).json()
    assert document["found"] == 2
    assert [region["label"] for region in document["regions"]] == ["cat"]
    many = [{"label": str(number), "point": [number % 6, 1]} for number in range(9)]
    fake.transport.pieces = lambda call: [piece("", "stop", regions_json=many)]
    document = ask("POST", PATH, fake, settings={"max_objects": 5}, json=ASKED | {"format": "png"}).json()
    assert (document["found"], len(document["regions"])) == (9, 5)


@pytest.mark.parametrize(("pixels", "returned"), [(3 * WIDTH * HEIGHT, 3), (4 * WIDTH * HEIGHT - 1, 3), (1, 1)])
def test_no_more_regions_than_the_segmenter_answers(fake: Fake, pixels: int, returned: int) -> None:
    many = [{"label": str(number), "point": [number % 6, 1]} for number in range(9)]
    fake.transport.pieces = lambda call: [piece("", "stop", regions_json=many)]
    for wanted in (ASKED, ASKED | {"max_regions": 8}):
        document = ask("POST", PATH, fake, settings={"max_answer_pixels": pixels}, json=wanted).json()
        assert (document["found"], len(document["regions"])) == (9, returned)
        assert len(fake.transport.prompt()["objects"]) == returned


def test_tokens_are_counted(fake: Fake) -> None:
    async def run() -> str:
        async with client_of(fake) as client:
            await client.post(PATH, json=ASKED)
            return (await client.get("/metrics")).text

    lines = [line for line in asyncio.run(run()).splitlines() if line.startswith("triton_sam_service_tokens_total{")]
    counted = {line.rpartition(" ")[2] for line in lines if 'model="finder"' in line}
    assert counted == {"7.0", "3.0"}


# -- refusals ----------------------------------------------------------------------------------------------------

TALKERS = {name: spec for name, spec in VLMS.items() if not spec.tasks}


@pytest.mark.parametrize(
    ("fields", "status", "code", "words"),
    [
        ({"question": None}, 400, "invalid_input", "exactly one of question and object"),
        ({"object": "cat"}, 400, "invalid_input", "exactly one of question and object, not both"),
        ({"question": " "}, 400, "invalid_input", "question must be a text that is not empty"),
        ({"question": 7}, 400, "invalid_input", "question must be a text"),
        ({"question": "x" * 40_000}, 413, "too_large", "question has 40,000 characters"),
        ({"task": "answer"}, 400, "invalid_input", "task is one of detect, point, ground"),
        ({"task": ["ground"]}, 400, "invalid_input", "task is one of detect, point, ground"),
        ({"task": "point"}, 422, "unsupported", "no vision-language model that is served .* does the task point"),
        ({"task": "point", "model": "finder"}, 422, "unsupported", "finder does not do the task point"),
        ({"model": "talker"}, 422, "unsupported", "talker answers in words and gives no places"),
        ({"model": "flamingo"}, 404, "model_not_found", "no vision-language model 'flamingo'"),
        ({"segmenter": "sam9"}, 404, "not_found", "there is no model 'sam9': available are"),
        ({"segmenter": 9}, 400, "invalid_input", "segmenter must be a string"),
        ({"image": None}, 400, "invalid_input", "image must be a string"),
        ({"image": "no image"}, 400, "invalid_input", "image is not base64"),
        ({"image": base64.b64encode(b"no image").decode()}, 400, "invalid_input", "image"),
        ({"image_key": KEY, "image": None}, 400, "invalid_input", "unknown key"),
        ({"latest_wins": True}, 400, "invalid_input", "unknown key"),
        ({"format": "logits"}, 400, "invalid_input", "format is one of png, rle, polygon, bits"),
        ({"clean": -1}, 400, "invalid_input", "clean"),
        ({"max_regions": 0}, 400, "invalid_input", "max_regions is a whole number from 1 to 64"),
        ({"max_regions": 65}, 400, "invalid_input", "max_regions is a whole number from 1 to 64"),
        ({"max_regions": True}, 400, "invalid_input", "max_regions is a whole number from 1 to 64"),
    ],
)
def test_refusals(fake: Fake, fields: dict[str, Any], status: int, code: str, words: str) -> None:
    refused = ground(fake, **fields)
    assert re.search(words, refusal(refused, status, code))
    assert fake.transport.streams == [], "before a model works"
    assert fake.transport.calls == []


def test_nothing_is_served() -> None:
    assert "no vision-language model is served" in refusal(ground(Fake(vlms={})), 404, "model_not_found")
    assert "no segmenter is served" in refusal(ground(Fake(segmenters={})), 404, "not_found")
    refused = refusal(ground(Fake(vlms=TALKERS)), 422, "unsupported")
    assert "no vision-language model that is served (talker, single) does the task ground" in refused


def test_a_model_that_cannot_be_understood(fake: Fake) -> None:
    for regions in ([{"label": "cat"}], [{"box": [0, 0, 1, 1]}], [{"label": "cat", "box": [1, 2, 3]}], [7]):
        fake.transport.pieces = lambda call, found=regions: [piece("", "stop", regions_json=found)]  # type: ignore[misc]
        refusal(ground(fake), 500, "internal_error")
    fake.transport.pieces = lambda call: [piece("a")]
    refusal(ground(fake), 500, "internal_error")
    fake.transport.pieces = lambda call: [piece("a"), InternalError("a crash")]
    refusal(ground(fake), 500, "internal_error")


def test_a_token_is_needed(fake: Fake) -> None:
    refusal(ground(fake, settings={"token": "alice-and-her-long-word"}), 401, "not_authorised")


# -- limits and hang-ups -----------------------------------------------------------------------------------------


def test_grounding_leaves_slots_to_others(fake: Fake) -> None:
    fake.transport.hold_before = 0

    async def run() -> None:
        async with client_of(fake, service_requests=8) as client:
            asking = [asyncio.create_task(client.post(PATH, json=ASKED)) for _ in range(2)]
            await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.streams) == 2)
            refused = await client.post(PATH, json=ASKED)
            assert "2 requests to /v1/ground are" in refusal(refused, 429, "queue_full")
            fake.transport.release()
            assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200, 200]

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_it_may_take_longer_than_other_requests(fake: Fake) -> None:
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake, service_seconds=0.1) as client:
            waiting = asyncio.create_task(client.post(PATH, json=ASKED))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            fake.transport.release()
            return await waiting

    assert asyncio.run(run()).status_code == 200


def test_but_not_for_ever(fake: Fake) -> None:
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake, vlm_seconds=0.2) as client:
            return await client.post(PATH, json=ASKED)

    refusal(asyncio.run(run()), 504, "deadline_exceeded")
    assert fake.transport.left


@pytest.mark.parametrize("stage", ["vlm", "segmenter"])
def test_a_client_that_hangs_up_cancels_the_work(fake: Fake, stage: str) -> None:
    if stage == "vlm":
        fake.transport.hold_before = 1
    else:
        fake.transport.hold()
    body = json.dumps(ASKED).encode()
    head = b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body))
    with listening(fake) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head + body)
            fake.transport.wait_for(lambda it: len(it.streams if stage == "vlm" else it.calls) == 1)
        fake.transport.wait_for(lambda it: len(it.left if stage == "vlm" else it.cancels) == 1)
    assert set(SEGMENTERS) >= {call.model for call in fake.transport.calls}


@pytest.mark.parametrize("stage", ["vlm", "segmenter"])
def test_a_session_is_cancelled(fake: Fake, stage: str) -> None:
    """What the vision-language model has answered counts no more, even if the server has not ended its stream."""
    pieces = [*fake.transport.pieces(Call("finder", {}, ("regions_json",))), piece("")]
    fake.transport.pieces = lambda call: pieces
    fake.transport.hold_before = 1 if stage == "vlm" else len(pieces) - 1
    fake.transport.hold()

    async def run() -> None:
        async with client_of(fake) as client:
            waiting = asyncio.create_task(client.post(PATH, json=ASKED | {"session_id": "me"}))
            await asyncio.to_thread(
                fake.transport.wait_for, lambda it: len(it.held) == (1 if stage == "vlm" else 2) and it.streams
            )
            for session, count in (("you", 0), ("me", 1), ("me", 0)):
                cancelled = await client.post("/cancel_pending", json={"session_id": session})
                assert cancelled.json() == {"session_id": session, "cancelled": count}
            refusal(await waiting, 499, "cancelled")
            assert len(fake.transport.calls) == (stage == "segmenter")
            if stage == "vlm":
                await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.left) == 1)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_another_process_cancels_the_session(fake: Fake) -> None:
    """On a thread of its own."""
    fake.transport.hold_before = 1
    cancels: list[CancelHere] = []

    class Others(Siblings):
        def serve_cancels(self, cancel: CancelHere | None) -> None:
            cancels.extend([] if cancel is None else [cancel])

    async def run() -> None:
        app = create_app(fake.backend, Settings(), shared=SharedState(siblings=Others()))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=TIMEOUT) as client,
        ):
            waiting = asyncio.create_task(client.post(PATH, json=ASKED | {"session_id": "me"}))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.held) == 1)
            assert await asyncio.to_thread(cancels[0], user_session("you")) == 0
            assert await asyncio.to_thread(cancels[0], user_session("me")) == 1
            refusal(await waiting, 499, "cancelled")
            await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.left) == 1)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))
    assert fake.transport.calls == []
