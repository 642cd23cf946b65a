from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.unit.service.helpers import CLICK, KEY, Fake, ask, client_of, image_file, mask_result, refusal, result
from triton_sam.errors import ImageExpired, InvalidInput, QueueFull

IMAGE = image_file()
POINTS = {"points": [[3, 2]]}


def test_an_image_is_encoded() -> None:
    fake = Fake()
    answer = ask("POST", "/v1/images", fake, files={"image": ("a.png", IMAGE)}, data={"model": "sam3"})
    assert answer.status_code == 200
    assert answer.json() == result()
    [call] = fake.transport.calls
    assert call.model == "sam3"
    assert list(call.inputs) == ["image"]
    assert call.inputs["image"].tobytes() == IMAGE
    assert list(call.outputs) == ["result_json"]


def test_a_click() -> None:
    fake = Fake()
    asked = {"points": [[3, 2]], "labels": [1], "multimask": True, "format": "rle"}
    answer = ask("POST", "/v1/segment", fake, json={"image_key": KEY, "model": "sam2.1:large", **asked})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == json.dumps(mask_result()).encode()  # as it came
    [call] = fake.transport.calls
    assert call.model == "sam2.1_large"
    assert call.inputs["image_key"].tolist() == [KEY.encode()]
    assert fake.transport.prompt() == asked


@pytest.mark.parametrize("clean", [64, {"holes": 8}])
def test_clean_reaches_the_server(clean: Any) -> None:
    fake = Fake()
    assert ask("POST", "/v1/segment", fake, json={**CLICK, "clean": clean}).status_code == 200
    assert fake.transport.prompt()["clean"] == clean


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_an_image_and_a_prompt_in_one(head: str) -> None:
    fake = Fake()
    text = head + base64.encodebytes(IMAGE).decode()
    answer = ask("POST", "/v1/segment", fake, json={"image": text, "box": [0, 0, 3, 2]})
    assert answer.json() == mask_result()
    assert fake.transport.calls[0].inputs["image"].tobytes() == IMAGE
    assert fake.transport.prompt() == {"box": [0, 0, 3, 2]}


def test_a_large_body_is_parsed_all_the_same() -> None:
    fake = Fake()
    mask = np.ones((256, 256), np.float32)
    for form in (mask.tolist(), base64.b64encode(mask.tobytes()).decode()):
        answer = ask("POST", "/v1/segment", fake, json={"image_key": KEY, "mask_input": form})
        assert answer.status_code == 200, answer.text


def test_the_side_of_a_mask_is_the_models() -> None:
    mask = base64.b64encode(np.ones((288, 288), np.float32).tobytes()).decode()
    assert ask("POST", "/v1/segment", json={"image_key": KEY, "mask_input": mask, "model": "sam3"}).status_code == 200
    answer = ask("POST", "/v1/segment", json={"image_key": KEY, "mask_input": mask, "model": "sam2"})
    assert "256 x 256" in refusal(answer, 400, "invalid_input")


def test_session_and_latest_wins_reach_the_server() -> None:
    fake = Fake()
    ask("POST", "/v1/segment", fake, json={**CLICK, "session_id": "me", "latest_wins": True})
    parameters = fake.transport.calls[0].parameters
    assert str(parameters["session_id"]).endswith("user/me")
    assert parameters["latest_wins"] is True


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "exactly one of image_key and image"),
        ({**CLICK, "image": "abcd"}, "not both"),
        ({"image_key": KEY}, "prompt is empty"),
        ({**CLICK, "points": [[1, 2, 3]]}, "entry 0 needs 2 numbers"),
        ({**CLICK, "points": [[1, True]]}, "not a finite number"),
        ({**CLICK, "labels": [1, 1]}, "1 points have 2 labels"),
        ({**CLICK, "format": "jpeg"}, "format is one of"),
        ({**CLICK, "format": ["png"]}, "format is one of"),
        ({**CLICK, "colour": "red"}, "unknown key 'colour'"),
        ({**CLICK, "image_size": [1, 1]}, "leave it out"),
        ({**CLICK, "multimask": "yes"}, "multimask is true or false"),
        ({**CLICK, "clean": "yes"}, "clean is a number of pixels"),
        ({**CLICK, "clean": 64, "format": "logits"}, "clean is for full-size masks"),
        ({**CLICK, "model": 3}, "model must be a string"),
        ({**CLICK, "model": "x" * 300}, "at most 200 characters"),
        ({**CLICK, "image_key": 3}, "image_key must be a string"),
        ({**CLICK, "image_key": "\ud800"}, "printable"),
        ({**CLICK, "session_id": "a\nb"}, "printable"),
        ({**CLICK, "session_id": "s" * 201}, "200"),
        ({**CLICK, "latest_wins": 1, "session_id": "me"}, "latest_wins must be true or false"),
        ({**CLICK, "latest_wins": True}, "needs a session_id"),
        ({**POINTS, "image": 3}, "image must be a string"),
        ({**POINTS, "image": "no base64!"}, "not base64"),
        ({**POINTS, "image": "ä"}, "not base64"),
        ({**POINTS, "image": base64.b64encode(b"no image").decode()}, "format is unknown"),
        ({**POINTS, "image": "data:image/png;base64,"}, "empty"),
        ({"points": [[7, 2]], "image": base64.b64encode(IMAGE).decode()}, "outside the image of 6 x 4"),
    ],
)
def test_what_is_wrong_never_reaches_triton(document: dict[str, Any], words: str) -> None:
    fake = Fake()
    answer = ask("POST", "/v1/segment", fake, content=json.dumps(document))
    assert words in refusal(answer, 400, "invalid_input")
    assert fake.transport.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"3",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"points": [[1e999, NaN]], "image_key": "a"}',
        b"1" * 5000,
    ],
)
def test_bodies_that_are_no_requests(body: bytes) -> None:
    refusal(ask("POST", "/v1/segment", content=body), 400, "invalid_input")


def test_models_that_are_not_there_and_texts_for_models_without_ears() -> None:
    assert "available are" in refusal(ask("POST", "/v1/segment", json={**CLICK, "model": "sam9"}), 404, "not_found")
    refusal(ask("POST", "/v1/segment", json={"image_key": KEY, "text": "a cat"}), 422, "unsupported")
    refusal(ask("POST", "/v1/segment", Fake(segmenters={}), json=CLICK), 404, "not_found")
    image = {"image": ("a.png", IMAGE)}
    refusal(ask("POST", "/v1/images", files=image, data={"model": "sam9"}), 404, "not_found")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ImageExpired("the image is no longer cached: send it again"), 404, "image_expired"),
        (QueueFull("512 clicks wait already: try again"), 429, "queue_full"),
        (InvalidInput("point 0 lies outside"), 400, "invalid_input"),
    ],
)
def test_what_the_segmenter_says_is_passed_on(error: Exception, status: int, code: str) -> None:
    fake = Fake()

    def fail(call: object) -> Any:
        raise error

    fake.transport.answer = fail
    assert refusal(ask("POST", "/v1/segment", fake, json=CLICK), status, code) == str(error)


@pytest.mark.parametrize(
    ("settings", "status"),
    [({"max_image_bytes": 10}, 413), ({"max_image_pixels": 10}, 413)],
)
def test_large_images(settings: dict[str, Any], status: int) -> None:
    for request in (
        {"url": "/v1/images", "files": {"image": ("a.png", IMAGE)}},
        {"url": "/v1/segment", "json": {**POINTS, "image": base64.b64encode(IMAGE).decode()}},
        {"url": "/embedded_model", "files": {"image": ("a.png", IMAGE)}},
        {"url": "/prediction", "files": {"image": ("a.png", IMAGE)}, "data": {"x": "1", "y": "1"}},
    ):
        fake = Fake()

        async def run(fake: Fake = fake, request: dict[str, Any] = request) -> httpx.Response:
            async with client_of(fake, **settings) as client:
                return await client.request("POST", **request)

        refusal(asyncio.run(run()), status, "too_large")
        assert fake.transport.calls == []


def test_a_prompt_that_is_too_long() -> None:
    answer = ask("POST", "/v1/segment", settings={"max_prompt_bytes": 20}, json={**CLICK, "labels": [1]})
    refusal(answer, 413, "too_large")


@pytest.mark.parametrize(
    "request_",
    [
        {"data": {"image": "text"}},
        {"files": {"other": ("a.png", IMAGE)}},
        {"json": {}},
        {"content": b"rubbish", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": b"rubbish", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {"files": {"image": ("a.png", b"")}},
        {"files": {"image": ("a.png", IMAGE), "session_id": ("b", b"me")}},
    ],
)
def test_forms_without_an_image(request_: dict[str, Any]) -> None:
    fake = Fake()
    refusal(ask("POST", "/v1/images", fake, **request_), 400, "invalid_input")
    assert fake.transport.calls == []


# -- background requests -------------------------------------------------------------------------------------------


def in_the_background(fake: Fake) -> list[bool]:
    calls = fake.transport.calls + fake.transport.streams
    return [call.parameters.get("background", False) is True for call in calls]


@pytest.mark.parametrize("background", [True, False])
def test_background_reaches_the_server(background: bool) -> None:
    fake = Fake()
    form = {"background": "true"} if background else {}
    assert ask("POST", "/v1/images", fake, files={"image": ("a.png", IMAGE)}, data=form).status_code == 200
    fields = {"background": background}
    assert ask("POST", "/v1/segment", fake, json={**CLICK, **fields}).status_code == 200
    assert ask("POST", "/v1/everything", fake, json={"image_key": KEY, **fields}).status_code == 200
    assert in_the_background(fake) == [background] * 3
    assert fake.transport.prompt(1) == {"points": CLICK["points"]}, "it is no part of the prompt"


def test_background_is_a_flag() -> None:
    answer = ask("POST", "/v1/segment", json={**CLICK, "background": "later"})
    assert refusal(answer, 400, "invalid_input") == "background must be true or false"
    answer = ask("POST", "/v1/images", files={"image": ("a.png", IMAGE)}, data={"background": "later"})
    assert "background must be true or false" in refusal(answer, 400, "invalid_input")


def test_half_of_the_places_are_left_for_people() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> tuple[list[httpx.Response], list[httpx.Response]]:
        async with client_of(fake, service_requests=4) as client:
            job = [asyncio.create_task(client.post("/v1/segment", json={**CLICK, "background": True})) for _ in "12"]
            await fake.transport.reached(calls=2)
            refused = [
                await client.post("/v1/segment", json={**CLICK, "background": True}),
                await client.post("/v1/everything", json={"image_key": KEY, "background": True}),
                await client.post("/v1/images", files={"image": ("a.png", IMAGE)}, data={"background": "true"}),
            ]
            people = [asyncio.create_task(client.post("/v1/segment", json=CLICK)) for _ in "12"]
            await fake.transport.reached(calls=4)
            fake.transport.release()
            return refused, [await task for task in (*job, *people)]

    refused, served = asyncio.run(run())
    for answer in refused:
        assert "left for people" in refusal(answer, 429, "queue_full")
        assert float(answer.headers["retry-after"]) > 0
    assert [answer.status_code for answer in served] == [200] * 4
