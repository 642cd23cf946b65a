from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from tests.unit.service.helpers import CLICK, Fake, ask, image_file, refusal
from triton_sam import errors
from triton_sam.models.specs import ModelSpec
from triton_sam.service import error_responses
from triton_sam.service.app import create_app
from triton_sam.service.upstream import Upstream
from triton_sam.settings import Settings


def failing_with(error: Exception) -> Fake:
    fake = Fake()

    def fail(call: object) -> Any:
        raise error

    fake.transport.answer = fail
    return fake


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput, "invalid_input"),
        (errors.TooLarge, "too_large"),
        (errors.NotAuthorised, "not_authorised"),
        (errors.ImageExpired, "image_expired"),
        (errors.QueueFull, "queue_full"),
        (errors.Cancelled, "cancelled"),
        (errors.DeadlineExceeded, "deadline_exceeded"),
        (errors.ServerUnreachable, "server_unreachable"),
        (errors.RequestTimeout, "request_timeout"),
    ],
)
def test_codes(error: type[errors.TritonSamError], code: str) -> None:
    assert error_responses.code_of(error("")) == code
    assert errors.spelled(error, "-") == code.replace("_", "-")


def test_paths_and_methods() -> None:
    assert "'/nothing'" in refusal(ask("GET", "/nothing"), 404, "not_found")
    answer = ask("DELETE", "/v1/segment")
    assert "POST" in refusal(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


SECRET = "10.1.2.3:8000 /srv/models/sam2"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ServerUnreachable(f"no server answers at {SECRET}"), 503, "unavailable"),
        (errors.InternalError(f"cannot open {SECRET}"), 500, "internal_error"),
        (errors.ServerError(f"died at {SECRET}"), 500, "internal_error"),
        (errors.DeadlineExceeded(f"no answer from {SECRET}"), 504, "deadline_exceeded"),
        (errors.Unavailable(f"being loaded at triton.invalid:8000 ({SECRET})"), 503, "unavailable"),
        (RuntimeError(SECRET), 500, "internal_error"),
    ],
)
def test_internals_stay_inside(error: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        answer = ask("POST", "/v1/segment", failing_with(error), json=CLICK)
    message = refusal(answer, status, code)
    assert "10.1.2.3" not in message
    assert "triton.invalid" not in message
    assert "/srv" not in message
    assert answer.headers.get("retry-after") == ("2" if status == 503 else None)
    assert SECRET in caplog.text  # but the operator learns it


@pytest.mark.parametrize(
    ("error", "header", "value"),
    [
        (errors.QueueFull("full"), "retry-after", "1"),
        (errors.Unavailable("stopping"), "retry-after", "2"),
        (errors.Cancelled("superseded"), "cancelled-by-client", "1"),
    ],
)
def test_headers_of_refusals(error: errors.TritonSamError, header: str, value: str) -> None:
    assert ask("POST", "/v1/segment", failing_with(error), json=CLICK).headers[header] == value


def test_an_unexpected_exception(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Mapping[str, ModelSpec]:
        raise RuntimeError(SECRET)

    app = create_app(Upstream(lambda: {"state": "ready"}, broken), Settings())

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/models", headers={"X-Request-ID": "my-request"})

    answer = asyncio.run(run())
    message = refusal(answer, 500, "internal_error")
    assert "my-request" in message
    assert SECRET not in message
    assert answer.headers["x-request-id"] == "my-request"
    assert "my-request" in caplog.text
    assert SECRET in caplog.text


def test_an_answer_without_what_was_asked_for() -> None:
    fake = Fake()
    fake.transport.answer = lambda call: {}
    refusal(ask("POST", "/v1/segment", fake, json=CLICK), 500, "internal_error")
    fake.transport.answer = lambda call: {"result_json": np.array([b"{}"], dtype=object)}
    image = {"image": ("a.png", image_file())}
    refusal(ask("POST", "/prediction", fake, files=image, data={"x": "1", "y": "1"}), 500, "internal_error")


def test_fields_that_fastapi_itself_refuses() -> None:
    app = FastAPI()
    error_responses.install(app)

    @app.get("/number")
    async def number(value: int) -> int:
        return value

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/number?value=three")

    assert refusal(asyncio.run(run()), 400, "invalid_input").startswith("value is invalid")


def test_before_the_start() -> None:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Fake().app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/segment", json=CLICK)

    refusal(asyncio.run(run()), 503, "unavailable")
