"""The bytes of people's requests, against what the package's clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.bench.pictures import Pictures, number_at
from triton_sam.bench.users.messages import (
    ServiceMessages,
    Site,
    Template,
    TritonMessages,
    error_kind,
    frame_head,
    image_key,
)
from triton_sam.bench.users.websocket import ERROR, RESULT, SUPERSEDED, FrameReader, read_response
from triton_sam.client import core, service_calls, wire
from triton_sam.errors import InternalError

PICTURES = Pictures(side=64)
DATA = PICTURES.jpeg(7)
KEY = "0123456789" * 4


def site(form: str = "bits", **changes: Any) -> Site:
    at = number_at(DATA)
    return Site("127.0.0.1", 8000, "sam2", DATA, at.start, at.stop - at.start, form, **changes)


def split(request: bytes | bytearray) -> tuple[str, dict[str, str], bytes]:
    """(first line, headers, body) of a request whose length must be right."""
    head, _, body = bytes(request).partition(b"\r\n\r\n")
    line, *rest = head.decode().split("\r\n")
    headers = dict(each.split(": ", 1) for each in rest)
    assert int(headers["content-length"]) == len(body)
    return line, headers, body


def infer(request: bytes | bytearray) -> tuple[dict[str, Any], list[bytes]]:
    """(JSON, input after input) of an infer request in Triton's binary form."""
    line, headers, body = split(request)
    assert line == "POST /v2/models/sam2/infer HTTP/1.1"
    size = int(headers["inference-header-content-length"])
    document, rest, inputs = json.loads(body[:size]), body[size:], []
    for each in document["inputs"]:
        length = each["parameters"]["binary_data_size"]
        inputs.append(rest[:length])
        rest = rest[length:]
    assert rest == b""
    return document, inputs


def text(tensor: bytes) -> bytes:
    assert int.from_bytes(tensor[:4], "little") == len(tensor) - 4
    return tensor[4:]


def client_call(form: str = "bits") -> wire.Call:
    """The hover that SpeculativeSAM2Client sends, without its session."""
    request = core.segment_request([[12.5, 40.0]], [1], None, None, multimask=False, form=form)
    return wire.Call("sam2", wire.click_inputs(KEY, request.document), request.outputs)


@pytest.mark.parametrize("form", ["bits", "rle", "png"])
def test_prompts_to_triton_are_those_of_the_client(form: str) -> None:
    prompts = TritonMessages(site(form), "run 3").prompts(KEY, DATA)
    expected = client_call(form)
    for template, session in (
        (prompts.hover, {"session_id": "run 3 hover", "sequence": 123, "latest_wins": True}),
        (prompts.click, {"session_id": "run 3 click", "sequence": 123}),
    ):
        request = template.filled(12.5, 40.0, 123)
        document, (key, prompt) = infer(request)
        assert document["parameters"] == session
        assert [each["name"] for each in document["outputs"]] == list(expected.outputs)
        assert text(key).decode() == wire.text_of(expected.inputs, "image_key")
        assert json.loads(text(prompt)) == json.loads(wire.text_of(expected.inputs, "prompt_json"))
        assert split(request)[1][wire.IMAGE_HEADER] == wire.image_headers(DATA)[wire.IMAGE_HEADER]


def test_prompts_to_the_service_are_those_of_the_client() -> None:
    prompts = ServiceMessages(site(token="secret-of-16-letters"), "run 3").prompts(KEY, DATA)
    expected = service_calls.click_document(client_call())
    ((opcode, frame),) = unmasked(prompts.hover.filled(12.5, 40.0, 123))
    assert opcode == 1
    assert json.loads(frame) == {"id": 123, **expected}
    line, headers, body = split(prompts.click.filled(12.5, 40.0, 123))
    assert line == "POST /v1/segment HTTP/1.1"
    assert headers["authorization"] == "Bearer secret-of-16-letters"
    assert json.loads(body) == {**expected, "session_id": "run 3 click"}


def unmasked(frame: bytes | bytearray) -> list[tuple[int, bytes]]:
    """The messages in a client's frame whose mask is zero, read as a server's."""
    start = {126: 4, 127: 10}.get(frame[1] & 0x7F, 2)
    assert frame[1] & 0x80
    assert frame[start : start + 4] == bytes(4)
    return FrameReader().feed(bytes([frame[0], frame[1] & 0x7F]) + bytes(frame[2:start]) + bytes(frame[start + 4 :]))


def test_an_image_is_a_new_one_and_its_key_is_read() -> None:
    data = site().new_image(41)
    assert data == PICTURES.jpeg(41)
    document, (sent,) = infer(TritonMessages(site(), "run 3").image(data, 9))
    assert sent == data
    assert document["parameters"] == {"session_id": "run 3 image", "sequence": 9}
    assert document["inputs"][0]["shape"] == [len(data)]
    line, headers, body = split(ServiceMessages(site(), "run 3").image(data, 9))
    assert line == "POST /v1/images HTTP/1.1"
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert data in body
    assert b'name="model"\r\n\r\nsam2\r\n' in body
    assert image_key(json.dumps({"outputs": [{"name": "image_key", "data": [KEY]}]}).encode()) == KEY
    assert image_key(json.dumps({"image_key": KEY}).encode()) == KEY


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"outputs": []}', b'{"outputs": [{"name": "image_key"}]}'])
def test_a_response_without_a_key_is_told(body: bytes) -> None:
    with pytest.raises(ValueError):
        image_key(body)


@given(x=st.floats(0, 99_999), y=st.floats(0, 99_999), number=st.integers(1, 10**11))
def test_a_filled_template_never_changes_its_length(x: float, y: float, number: int) -> None:
    template = TritonMessages(site(), "run 3").prompts(KEY, DATA).hover
    document, (_, prompt) = infer(template.filled(x, y, number))
    assert document["parameters"]["sequence"] == number
    assert json.loads(text(prompt))["objects"][0]["points"] == [
        [pytest.approx(x, abs=0.06), pytest.approx(y, abs=0.06)]
    ]


def test_a_request_without_its_placeholders_is_refused() -> None:
    with pytest.raises(InternalError, match="preformatted"):
        Template(b"no point at all")


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_any_size(size: int) -> None:
    assert unmasked(frame_head(size) + b"x" * size) == [(1, b"x" * size)]


@given(st.lists(st.integers(0, 70_000), max_size=4), st.integers(500, 5_000))
def test_frames_are_cut_from_any_stream(sizes: list[int], step: int) -> None:
    stream = b"".join(bytes([0x81, 127]) + size.to_bytes(8, "big") + b"y" * size for size in sizes)
    reader = FrameReader()
    found = [message for at in range(0, len(stream), step) for message in reader.feed(stream[at : at + step])]
    assert [(opcode, len(payload)) for opcode, payload in found] == [(1, size) for size in sizes]


def test_fragments_are_joined_around_a_ping() -> None:
    stream = bytes([0x01, 2]) + b"ab" + bytes([0x89, 1]) + b"p" + bytes([0x80, 1]) + b"c"
    assert FrameReader().feed(stream) == [(9, b"p"), (1, b"abc")]


@pytest.mark.parametrize(
    ("message", "number", "outcome"),
    [
        (b'{"id":12,"result":{"mask":{}}}', 12, RESULT),
        (b'{"id":12,"superseded":true}', 12, SUPERSEDED),
        (b'{"id": 12, "error": {"code": "queue_full"}}', 12, ERROR),
        (b'{"result": {}, "id": 3}', 3, RESULT),
    ],
)
def test_responses_of_the_websocket(message: bytes, number: int, outcome: str) -> None:
    found = read_response(message)
    assert found is not None
    assert (found.number, found.outcome) == (number, outcome)


@pytest.mark.parametrize("message", [b"", b"[]", b'{"id": null, "error": {}}', b'{"id": "x"}'])
def test_messages_without_a_number_are_not_responses(message: bytes) -> None:
    assert read_response(message) is None


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b'{"error": "superseded [cancelled]"}', "cancelled"),
        (404, b'{"error": "unknown or expired [image-expired]"}', "image_expired"),
        (503, b'{"error": "the queue is full [queue-full]"}', "queue_full"),
        (429, b'{"error": {"code": "rate_limited", "message": "slower"}}', "rate_limited"),
        (500, b"no JSON at all", "internal_error"),
    ],
)
def test_errors_have_the_service_s_names(status: int, body: bytes, kind: str) -> None:
    assert error_kind(status, body)[0] == kind
