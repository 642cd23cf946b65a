"""Which API answers at an address, and what a client says if it is neither Triton's nor the service's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.client.memory_server import PICTURE
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, TritonVLMClient
from triton_sam.client.endpoint import Endpoint
from triton_sam.errors import NotAuthorised, ServerUnreachable, TritonSamError, Unavailable

ERROR = {"code": "not_found", "message": "no", "type": "invalid_request_error", "param": None}
METADATA = {"name": "triton", "version": "2.51.0", "extensions": ["classification"]}
Responses = dict[str, tuple[int, bytes]]


Asked = list[tuple[str, dict[str, str]]]
NOTHING = (404, b"<html>nothing</html>")


@contextlib.contextmanager
def program(responses: Responses, other: tuple[int, bytes] = NOTHING) -> Iterator[tuple[str, Asked]]:
    """(the address of a program that answers paths as told, what it was asked)."""
    seen: Asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, body = responses.get(self.path, other)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text(document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("responses", "is_service"),
    [
        ({"/v2": (200, text(METADATA))}, False),
        ({"/v2": (403, text({"error": "This API is restricted, expecting header 'x'"}))}, False),
        ({"/v2": (404, text({"error": "Not Found"}))}, False),
        ({"/v2": (404, text({"error": ERROR}))}, True),
        ({"/v2": (401, text({"error": ERROR | {"code": "not_authorised"}}))}, True),
        ({"/v2": (429, text({"error": ERROR | {"code": "rate_limited"}}))}, True),
        ({"/health": (503, text({"state": "starting"}))}, True),
        ({"/health": (200, b"ok")}, False),
        ({}, False),
        ({"/v2": (200, b"[]"), "/health": (200, b"3")}, False),
        ({"/v2": (501, b"<html>"), "/health": (501, b"<html>")}, False),
    ],
    ids=[
        "triton",
        "restricted",
        "refused",
        "service",
        "token",
        "rate",
        "behind a proxy",
        "another health",
        "inference only",
        "other json",
        "no GET",
    ],
)
def test_what_answers(responses: Responses, is_service: bool) -> None:
    with program(responses) as (address, seen):
        endpoint = Endpoint(address, 10.0)
        assert [endpoint.is_service() for _ in range(3)] == [is_service] * 3
        assert len(seen) <= 2, "it is asked once"


def test_a_proxy_whose_server_is_not_there_yet_is_asked_again() -> None:
    responses: Responses = {}
    with program(responses, (502, b"<html>bad gateway</html>")) as (address, _):
        endpoint = Endpoint(address, 10.0)
        with pytest.raises(Unavailable, match="responds 502"):
            endpoint.is_service()
        responses["/v2"] = (404, text({"error": ERROR}))
        assert endpoint.is_service()


def test_grpc_is_triton_and_is_not_asked() -> None:
    assert not Endpoint("grpc://127.0.0.1:1", 1.0).is_service()


def test_the_settings_token_goes_to_the_service_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam.settings import get_settings

    monkeypatch.setenv("TRITON_SAM_TOKEN", "a-long-word-for-alice")
    get_settings.cache_clear()
    try:
        for responses, expected in (
            ({"/v2": (200, text(METADATA))}, [None, None]),
            ({"/v2": (404, text({"error": ERROR}))}, [None, "Bearer a-long-word-for-alice"]),
        ):
            with program(responses) as (address, seen), SAM2TritonClient(address) as client:
                with pytest.raises(TritonSamError):
                    client.set_image(PICTURE)
                assert [headers.get("authorization") for _, headers in seen[:2]] == expected
        with program({}) as (address, seen), SAM2TritonClient(address, token="given") as client:
            with pytest.raises(TritonSamError):
                client.set_image(PICTURE)
            assert {headers.get("authorization") for _, headers in seen} == {"Bearer given"}
    finally:
        get_settings.cache_clear()


def blocking(url: str) -> None:
    with SAM2TritonClient(url) as client:
        client.set_image(PICTURE)


def speculative(url: str) -> None:
    async def run() -> None:
        async with SpeculativeSAM2Client(url) as client:
            client.set_image(PICTURE)
            await client.predict_async([[1, 1]], [1])

    asyncio.run(run())


def vlm(url: str) -> None:
    with TritonVLMClient(url) as client:
        client.infer("llava", PICTURE, "What?")


CLIENTS = [blocking, speculative, vlm]


@pytest.mark.parametrize("use", CLIENTS)
def test_something_that_is_neither(use: Callable[[str], None]) -> None:
    with program({}) as (address, _):
        with pytest.raises(ServerUnreachable) as caught:
            use(address)
        assert str(caught.value) == (
            f"what responds at {address} is neither Triton nor the triton-sam service (404 <html>nothing</html>): "
            "check the host and the port"
        )


@pytest.mark.parametrize("use", CLIENTS)
def test_a_gate_that_wants_other_papers(use: Callable[[str], None]) -> None:
    with program({}, (403, b"<html>forbidden</html>")) as (address, _):
        with pytest.raises(NotAuthorised, match="check the token and the headers") as caught:
            use(address)
        assert "\n" not in str(caught.value)
