from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any

import httpx
import pytest

from tests.unit.everything_messages import messages, outputs, plain, progress, prompt_of
from tests.unit.service.helpers import CLICK, KEY, TIMEOUT, Fake, ask, client_of, image_file, listening, refusal
from triton_sam.core.everything.options import EverythingOptions, everything_from
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput, QueueFull, ServerUnreachable
from triton_sam.service.routes import everything_schemas

PATH = "/v1/everything"
EVENTS = {"Accept": "text/event-stream"}
BY_KEY = {"image_key": KEY}
IMAGE = image_file()


def find(
    document: dict[str, Any], fake: Fake | None = None, *, events: bool = False, **settings: Any
) -> httpx.Response:
    return ask("POST", PATH, fake, settings=settings, json=document, headers=EVENTS if events else {})


def events_of(answer: httpx.Response | str) -> list[tuple[str, Any]]:
    """(name, document) of each event; their form is checked on the way."""
    found = []
    *blocks, end = (answer if isinstance(answer, str) else answer.text).split("\n\n")
    assert end == ""
    for block in blocks:
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        found.append((name[7:], json.loads(data[6:])))
    return found


# what is sent and what comes back


def test_the_document_is_that_of_the_plain_model() -> None:
    fake = Fake()
    options = {"points_per_side": 16, "region": [0, 0, 3, 2]}
    answer = find({**BY_KEY, "model": "sam2.1:large", "everything": options, "format": "rle"}, fake)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == plain()
    [call] = fake.transport.streams
    assert call.model == "sam2.1_large"
    assert call.inputs["image_key"].tolist() == [KEY.encode()]
    assert list(call.outputs) == ["result_json"]
    assert prompt_of(call) == {"everything": options, "format": "rle"}
    assert fake.transport.calls == []


def test_the_stream_comes_as_events() -> None:
    answer = find(BY_KEY, events=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    *steps, last = messages()
    assert events_of(answer) == [*(("progress", step) for step in steps), ("result", last)]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json, Text/Event-Stream;q=0.5"])
def test_events_are_asked_for_by_accept(accept: str) -> None:
    answer = ask("POST", PATH, json=BY_KEY, headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*"])
def test_the_document_is_the_default(accept: str) -> None:
    answer = ask("POST", PATH, json=BY_KEY, headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"


def test_an_image_in_the_request() -> None:
    fake = Fake()
    text = "data:image/png;base64," + base64.b64encode(IMAGE).decode()
    assert find({"image": text}, fake).json() == plain()
    [call] = fake.transport.streams
    assert call.inputs["image"].tobytes() == IMAGE
    assert prompt_of(call) == {"everything": {}}


@pytest.mark.parametrize("everything", [None, {}, True])
def test_options_may_be_left_out(everything: Any) -> None:
    fake = Fake()
    assert find({**BY_KEY, "everything": everything}, fake).status_code == 200
    assert everything_from(prompt_of(fake.transport.streams[0])["everything"]) == EverythingOptions()


def test_session_and_latest_wins_reach_the_server() -> None:
    fake = Fake()
    find({**BY_KEY, "session_id": "me", "latest_wins": True}, fake)
    parameters = fake.transport.streams[0].parameters
    assert str(parameters["session_id"]).endswith("user/me")
    assert parameters["latest_wins"] is True
    assert isinstance(parameters["sequence"], int)


def test_line_breaks_in_the_models_json() -> None:
    fake = Fake()
    final = {"final": True, **plain()}
    fake.transport.pieces = lambda call: [_indented(final)]
    assert events_of(find(BY_KEY, fake, events=True)) == [("result", final)]


def _indented(document: Any) -> Any:
    found = dict(outputs(document))
    found["result_json"] = found["result_json"].copy()
    found["result_json"][0] = json.dumps(document, indent=1).encode()
    return found


# refusals


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "exactly one of image_key and image"),
        ({**BY_KEY, "image": "abcd"}, "not both"),
        ({**BY_KEY, "everything": False}, "not false"),
        ({**BY_KEY, "everything": [1]}, "everything is an object of options"),
        ({**BY_KEY, "everything": {"points_per_side": -1}}, "points_per_side of everything is a whole number"),
        ({**BY_KEY, "everything": {"points_per_side": 10_000}}, "points_per_side of everything is a whole number"),
        ({**BY_KEY, "everything": {"point_per_side": 8}}, "did you mean points_per_side?"),
        ({**BY_KEY, "everything": {"region": [5, 5, 1, 1]}}, "inverted or empty"),
        ({**BY_KEY, "points": [[1, 1]]}, "points cannot be combined with everything"),
        ({**BY_KEY, "multimask": True}, "multimask_output"),
        ({**BY_KEY, "format": "logits"}, "too large as logits"),
        ({**BY_KEY, "format": "gif"}, "format of everything is one of"),
        ({**BY_KEY, "latest_wins": True}, "latest_wins needs a session_id"),
        ({**BY_KEY, "image_size": [3, 3]}, "image_size is only for embeddings"),
    ],
)
def test_bad_requests_get_one_sentence(document: dict[str, Any], words: str, events: bool) -> None:
    fake = Fake()
    assert words in refusal(find(document, fake, events=events), 400, "invalid_input")
    assert fake.transport.streams == []


def test_not_a_number() -> None:
    body = b'{"image_key": "a", "everything": {"box_nms_thresh": NaN}}'
    assert "box_nms_thresh of everything is a number" in refusal(ask("POST", PATH, content=body), 400, "invalid_input")


def test_a_region_outside_the_image() -> None:
    text = base64.b64encode(IMAGE).decode()
    answer = find({"image": text, "everything": {"region": [0, 0, 600, 4]}})
    assert "reaches outside the image" in refusal(answer, 400, "invalid_input")


@pytest.mark.parametrize("path", ["/v1/segment"])
def test_clicks_have_another_route(path: str) -> None:
    answer = ask("POST", path, json={"image_key": KEY, "everything": {}})
    assert "/v1/everything" in refusal(answer, 400, "invalid_input")


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidInput("region of everything reaches outside the image: clip it"), 400, "invalid_input"),
        (ImageExpired("the image is gone"), 404, "image_expired"),
        (QueueFull("the queue is full"), 429, "queue_full"),
        (Cancelled("superseded"), 499, "cancelled"),
        (ServerUnreachable("no server at 10.0.0.1"), 503, "unavailable"),
    ],
)
def test_errors_of_the_model_before_the_first_message(error: Exception, status: int, code: str, events: bool) -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [error]
    assert "10.0.0.1" not in refusal(find(BY_KEY, fake, events=events), status, code)


def test_errors_after_it_are_the_last_event() -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: [outputs(progress(1, 0)), Cancelled("superseded")]
    found = events_of(find(BY_KEY, fake, events=True))
    assert [name for name, _ in found] == ["progress", "error"]
    assert found[-1][1]["error"]["code"] == "cancelled"


@pytest.mark.parametrize("sent", [[], [progress(1, 0)], [[1]]], ids=["nothing", "no final message", "no object"])
def test_a_stream_that_is_cut_or_wrong(sent: list[Any]) -> None:
    fake = Fake()
    fake.transport.pieces = lambda call: map(outputs, sent)
    answer = find(BY_KEY, fake)
    assert answer.status_code in (500, 503)


@pytest.mark.parametrize("state", ["starting", "recovering", "failed"])
@pytest.mark.parametrize("events", [False, True])
def test_no_work_while_the_server_is_not_ready(state: str, events: bool) -> None:
    assert state in refusal(find(BY_KEY, Fake(state=state), events=events), 503, "unavailable")


def test_a_token_is_needed_as_everywhere() -> None:
    refusal(find(BY_KEY, token="a-long-word-for-alice"), 401, "not_authorised")


# cancelling and time


@pytest.mark.parametrize("held_at", [0, 2])
@pytest.mark.parametrize("events", [False, True])
def test_a_disconnect_cancels_the_run_on_the_server(events: bool, held_at: int) -> None:
    fake = Fake()
    fake.transport.hold_before = held_at
    body = json.dumps(BY_KEY).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    head += "Accept: text/event-stream\r\n\r\n" if events else "\r\n"
    with listening(fake) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(head.encode() + body)
            fake.transport.wait_for(lambda it: it.held)
            found = b""
            while events and held_at and found.count(b"event: progress") < held_at:  # they come while it runs
                found += connection.recv(65536)
        fake.transport.wait_for(lambda it: it.cancels and it.left)
    [call], [cancel] = fake.transport.streams, fake.transport.cancels
    assert cancel.model == "sam2"  # which has the session, and not its stream
    assert cancel.parameters["session_id"] == call.parameters["session_id"]
    assert cancel.parameters["only"] == call.parameters["sequence"]


def test_a_session_is_cancelled() -> None:
    fake = Fake()
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake) as client:
            asking = asyncio.create_task(client.post(PATH, json={**BY_KEY, "session_id": "me"}))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.held)
            cancelled = await client.post("/cancel_pending", json={"session_id": "me"})
            assert cancelled.json()["cancelled"] == 1
            return await asking

    refusal(asyncio.run(run()), 499, "cancelled")
    assert fake.transport.cancels[0].model == "sam2"


def test_a_lost_model_ends_it_at_once() -> None:
    fake = Fake()
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake) as client:
            asking = asyncio.create_task(client.post(PATH, json=BY_KEY, headers=EVENTS))
            await asyncio.to_thread(fake.transport.wait_for, lambda it: it.held)
            await asyncio.to_thread(fake.lose, "its process died", "sam2")
            return await asking

    assert "its process died" in events_of(asyncio.run(run()))[-1][1]["error"]["message"]


@pytest.mark.parametrize("events", [False, True])
def test_it_may_take_longer_than_other_requests(events: bool) -> None:
    fake = Fake()
    fake.transport.hold_before = 1

    async def run() -> httpx.Response:
        async with client_of(fake, service_seconds=0.5) as client:  # what else the request needs keeps to it
            asking = asyncio.create_task(client.post(PATH, json=BY_KEY, headers=EVENTS if events else {}))
            done, _ = await asyncio.wait([asking], timeout=0.8)
            assert not done
            fake.transport.release()
            return await asking

    assert asyncio.run(run()).status_code == 200


def test_a_body_that_takes_too_long() -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    refusal(ask("POST", PATH, settings={"service_seconds": 0.05}, content=slowly()), 504, "deadline_exceeded")


def test_most_slots_stay_free_for_clicks() -> None:
    fake = Fake()
    fake.transport.hold_before = 0

    async def run() -> None:
        async with client_of(fake, service_requests=8) as client:
            asking = [asyncio.create_task(client.post(PATH, json=BY_KEY)) for _ in range(2)]
            await asyncio.to_thread(fake.transport.wait_for, lambda it: len(it.held) == 2)
            assert "2 requests to /v1/everything are" in refusal(
                await client.post(PATH, json=BY_KEY), 429, "queue_full"
            )
            assert (await client.post("/v1/segment", json=CLICK)).status_code == 200
            fake.transport.release()
            assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200, 200]

    asyncio.run(run())


# the OpenAPI document


def test_the_schema_has_the_options_of_the_core() -> None:
    described = everything_schemas.EverythingOptions
    assert {name: field.default for name, field in described.model_fields.items()} == {
        name: getattr(EverythingOptions(), name) for name in EverythingOptions.__dataclass_fields__
    }


@pytest.mark.parametrize("name", everything_schemas.EverythingOptions.model_fields)
def test_the_schema_has_the_limits_of_the_core(name: str) -> None:
    schema = everything_schemas.EverythingOptions.model_json_schema()["properties"][name]
    ranges = [entry for entry in (schema, *schema.get("anyOf", ())) if "minimum" in entry]
    for entry in ranges:
        for bound, step in (("minimum", -1), ("maximum", 1)):
            few = {} if name == "points_per_side" else {"points_per_side": 8}  # else crops would have too many points
            assert everything_from({**few, name: entry[bound]})
            with pytest.raises(InvalidInput, match=name):
                everything_from({**few, name: entry[bound] + step})


def test_the_document_describes_it() -> None:
    route = ask("GET", "/openapi.json").json()["paths"][PATH]["post"]
    assert set(route["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    reference = route["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith("/EverythingRequest")
