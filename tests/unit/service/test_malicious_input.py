"""Requests that cost much more to read than to send, and what may be seen in the answers to them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.server
import json
import struct
import threading
import zlib
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.service.helpers import CLICK, Fake, ask, client_of, image_file, refusal
from triton_sam import errors
from triton_sam.core.images import from_base64
from triton_sam.core.prompts import mask_to_base64
from triton_sam.errors import TooLarge
from triton_sam.service import error_responses, json_bodies
from triton_sam.service.routes import embedding_text
from triton_sam.settings import Settings, get_settings


def form(value: bytes, name: str = "session_id") -> bytes:
    return b'--B\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n--B--\r\n"


@pytest.mark.parametrize("charset", ["idna", "punycode", "utf-7", "unicode_escape", "zlib"])
def test_odd_alphabets(charset: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary=B; charset={charset}"}
    assert "utf-8" in refusal(ask("POST", "/v1/images", content=form(b"a"), headers=headers), 400, "invalid_input")


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "us-ascii"])
def test_usual_alphabets(charset: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary=B; charset={charset}"}
    answer = ask("POST", "/cancel_pending", content=form(b"me"), headers=headers)
    assert answer.json() == {"session_id": "me", "cancelled": 0}


@pytest.mark.parametrize("kept", [0, 30, 60, -5, -7])
def test_a_form_that_is_cut_short(kept: int) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    answer = ask("POST", "/cancel_pending", content=form(b"me")[:kept], headers=headers)
    assert "cut short" in refusal(answer, 400, "invalid_input")


def test_a_file_that_is_cut_short() -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    whole = form(image_file()).replace(b'name="session_id"', b'name="image"; filename="a.png"')
    assert ask("POST", "/v1/images", content=whole, headers=headers).status_code == 200
    for kept in (100, -30, -8):
        answer = ask("POST", "/v1/images", content=whole[:kept], headers=headers)
        assert "cut short" in refusal(answer, 400, "invalid_input")


def test_a_field_that_is_there_twice() -> None:
    """Two readers of one request might each take another one."""
    for field in ("session_id", "other"):
        answer = ask("POST", "/cancel_pending", data={"session_id": ["me"], field: ["me", "you"]})
        assert "twice" in refusal(answer, 400, "invalid_input")
    answer = ask("POST", "/cancel_pending?session_id=me&session_id=you")
    assert "twice" in refusal(answer, 400, "invalid_input")
    for body in ('{"image_key": "a", "points": [[1, 1]], "image_key": "b"}', '{"objects": [{"box": 1, "box": 2}]}'):
        assert "twice" in refusal(ask("POST", "/v1/segment", content=body), 400, "invalid_input")


def test_long_fields() -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    answer = ask("POST", "/v1/images", content=form(b"a" * 5000), headers=headers)
    assert "4KB" in refusal(answer, 400, "invalid_input")
    answer = ask("POST", "/cancel_pending", data={"session_id": "a" * 5000})
    refusal(answer, 400, "invalid_input")


def test_forms_without_files_are_short() -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    refusal(ask("POST", "/cancel_pending", content=b"&" * 200_000, headers=headers), 413, "too_large")
    answer = ask("POST", "/cancel_pending", content=b"&" * 1000 + b"session_id=me", headers=headers)
    assert answer.json() == {"session_id": "me", "cancelled": 0}


@pytest.mark.parametrize("part", ["[],", "{},", "0,"])
def test_json_of_too_many_parts(part: str) -> None:
    content = '{"points":[' + part * 500_001 + "0]}"
    assert "500,000" in refusal(ask("POST", "/v1/segment", content=content), 413, "too_large")


def test_masks_as_numbers_are_few_enough() -> None:
    zeros = [[0.25] * 256] * 256
    body = {"image_key": "a", "objects": [{"mask_input": zeros}] * 5}
    assert ask("POST", "/v1/segment", json=body).status_code == 200
    assert json_bodies.max_parts(Settings(max_points=10_000)) == 5 * 10_000 * 64
    assert json_bodies.max_message_parts(Settings()) == 200_000
    with pytest.raises(TooLarge):
        json_bodies.json_object("[" * 11, 10)
    assert json_bodies.json_object('{"id": "\ud800"}', 10) == {"id": "\ud800"}


def test_cancelling_needs_few_bytes() -> None:
    fake = Fake()
    long = json.dumps({"session_id": "me", "more": "x" * 5000})
    headers = {"Content-Type": "application/json"}
    assert "4,096" in refusal(ask("POST", "/cancel_pending", fake, content=long, headers=headers), 413, "too_large")
    answer = ask("POST", "/cancel_pending", fake, json={"session_id": "me"})
    assert answer.json() == {"session_id": "me", "cancelled": 0}


def test_base64_with_blanks() -> None:
    text = base64.b64encode(b"an image file").decode()
    assert from_base64("data:image/png;base64," + "\r\n ".join(text), "image") == b"an image file"
    with pytest.raises(errors.InvalidInput, match="base64"):
        from_base64("größe", "image")


def test_what_is_echoed_is_short() -> None:
    answer = ask("POST", "/v1/segment", json={**CLICK, "k" * 100_000: 1})
    assert len(refusal(answer, 400, "invalid_input")) < 300
    found = error_responses.error_document(errors.InvalidInput("x" * 1000))["error"]["message"]
    assert len(found) == 500
    assert found.endswith("...")
    assert error_responses.error_document(errors.InvalidInput("x" * 500))["error"]["message"] == "x" * 500


SECRET = "/srv/secret/models"


@pytest.mark.parametrize("kind", [errors.SetupError, errors.WeightsError, errors.ServerError, errors.InternalError])
def test_what_setup_says_stays_inside(kind: type[errors.TritonSamError], caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake()

    class Broken(dict[str, Any]):
        def __bool__(self) -> bool:
            raise kind(f"cannot read {SECRET}")

    fake.segmenters = Broken()
    message = refusal(ask("POST", "/v1/segment", fake, json=CLICK), 500, "internal_error")
    assert SECRET not in message
    assert SECRET in caplog.text


def test_health_tells_strangers_the_state_only() -> None:
    settings = {"token": "a-very-long-word"}
    for state, status in (("ready", 200), ("failed", 503)):
        fake = Fake(state=state)
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = ask("GET", "/health", fake, settings=settings, headers=headers)
            assert (answer.status_code, answer.json()) == (status, {"state": state})
        answer = ask("GET", "/health", fake, settings=settings, headers={"Authorization": "Bearer a-very-long-word"})
        assert (answer.status_code, answer.json()) == (status, fake.backend.status())


def test_metrics_from_something_that_speaks_no_http() -> None:
    class Odd(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(b"hello\r\n\r\n")

    with http.server.HTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        fake = Fake(metrics_url=f"http://127.0.0.1:{server.server_port}/metrics")
        refusal(ask("GET", "/v2/metrics", fake), 503, "unavailable")


def test_an_embedding_where_nothing_is_served() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(TooLarge):
        embedding_text.from_text(bomb, 0)
    fields = {"x": "1", "y": "1", "img_x": "6", "img_y": "4"}
    answer = ask("POST", "/from_model", Fake(segmenters={}), files={"model": ("a", bomb)}, data=fields)
    refusal(answer, 404, "not_found")


def test_an_image_of_far_too_many_pixels() -> None:
    data = bytearray(image_file())
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    answer = ask("POST", "/v1/images", files={"image": ("a.png", bytes(data))})
    assert "pixels" in refusal(answer, 413, "too_large")


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    token = Settings(token=" a-very-long-word\n").token  # type: ignore[arg-type]
    assert token is not None
    assert token.get_secret_value() == "a-very-long-word"
    assert Settings(token=token).token == token
    assert Settings(token="").token is None, "compose files can only set a variable to nothing"  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="token is blank"):
        Settings(token=" \n")  # type: ignore[arg-type]
    for wrong in ("größe", "two\nlines"):
        with pytest.raises(ValidationError, match="printable ASCII"):
            Settings(token=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="at least 16 characters: `openssl rand -hex 24` creates one"):
        Settings(token="a-short-word")  # type: ignore[arg-type]
    monkeypatch.setenv("TRITON_SAM_TOKEN", "größe")
    get_settings.cache_clear()
    with pytest.raises(errors.SetupError, match="TRITON_SAM_TOKEN") as caught:
        get_settings()
    assert "größe" not in str(caught.value)
    get_settings.cache_clear()


def test_a_prompt_as_it_is_meant() -> None:
    """The limits above do not affect a client that follows the protocol."""
    fake = Fake()

    async def run() -> None:
        async with client_of(fake) as client:
            mask = mask_to_base64([[0.0] * 256] * 256)
            body = {"image_key": "a", "objects": [{"points": [[1, 1]] * 256, "mask_input": mask}] * 64}
            assert (await client.post("/v1/segment", json=body)).status_code == 200

    asyncio.run(run())
