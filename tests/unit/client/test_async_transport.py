"""The asyncio transports against the same small server as the blocking ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.client.kserve import ANSWER, CLICK, ENCODE, KServe
from triton_sam.client.async_transport import (
    GrpcAsyncTransport,
    HttpAsyncTransport,
    connect_async,
    survives_native_cancel,
)
from triton_sam.client.wire import Address, Call, image_inputs
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    QueueFull,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
)
from triton_sam.server.host import free_port


def ask(address: Address, call: Call, headers: Mapping[str, str] | None = None, timeout: float = 20.0) -> Any:
    async def body() -> Any:
        transport = HttpAsyncTransport(address, timeout, headers or {})
        try:
            return await transport.infer(call)
        finally:
            await transport.close()

    return asyncio.run(body())


def test_a_call_becomes_a_request() -> None:
    with KServe() as server:
        answer = ask(server.address, replace(CLICK, headers={"traceparent": "00-a"}), {"authorization": "Bearer x"})
    (seen,) = server.behaviour.seen
    assert seen.path == "/v2/models/sam2/infer"
    assert seen.headers["authorization"] == "Bearer x"
    assert seen.headers["traceparent"] == "00-a"
    assert seen.headers["Accept-Encoding"] == "identity", "Triton would compress otherwise"
    assert seen.document["parameters"] == {"session_id": "s1", "latest_wins": True}
    assert np.array_equal(answer["scores"], ANSWER)


def test_a_large_image_travels_in_pieces_and_as_it_is() -> None:
    image = bytes(range(256)) * 8192
    with KServe() as server:
        ask(server.address, Call("sam2", image_inputs(image), ("image_key",)))
    assert server.behaviour.seen[0].tensors["image"] == image


@pytest.mark.parametrize(
    ("status", "sentence", "kind"),
    [
        (400, "point 0 lies outside", InvalidInput),
        (404, "the embedding is gone [image-expired]", ImageExpired),
        (503, "32 images are waiting already [queue-full]", QueueFull),
        (503, "the server is stopping", Unavailable),
        (400, "superseded [cancelled]", Cancelled),
        (400, "Request for unknown model: 'sam2' has no available versions", Unavailable),
        (500, "the encoder failed", InternalError),
    ],
)
def test_an_error_of_the_server(status: int, sentence: str, kind: type[TritonSamError]) -> None:
    with KServe() as server:
        server.behaviour.status = status
        server.behaviour.body = json.dumps({"error": sentence}).encode()
        with pytest.raises(kind) as caught:
            ask(server.address, CLICK)
    assert type(caught.value) is kind
    assert "[" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html>a proxy was here</html>", b"\xff\xfe", b'{"error": 3}', b"[]"])
def test_an_error_that_is_no_json(body: bytes) -> None:
    with KServe() as server:
        server.behaviour.status, server.behaviour.body = 503, body
        with pytest.raises(Unavailable):
            ask(server.address, CLICK)


def test_nobody_listens_or_hangs_up_or_is_too_slow() -> None:
    with pytest.raises(ServerUnreachable, match="triton-sam serve"):
        ask(Address(f"127.0.0.1:{free_port()}", grpc=False, tls=False), CLICK)
    with KServe() as server:
        server.behaviour.hang_up = True
        with pytest.raises(ServerUnreachable):
            ask(server.address, CLICK)
    with KServe() as server:
        server.behaviour.hold = threading.Event()
        with pytest.raises(DeadlineExceeded, match="time limit"):
            ask(server.address, ENCODE, timeout=0.2)


@pytest.mark.parametrize(
    ("version", "survives"),
    [("2.51.0", False), ("2.58.1", False), ("2.59.0", True), ("3.0.0", True), ("", False), ("r25", False)],
)
def test_native_cancelling_from_25_06_on(version: str, survives: bool) -> None:
    assert survives_native_cancel(version) is survives


def test_an_old_or_silent_grpc_server_is_not_cancelled_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        asked = []

        class Client:
            async def get_server_metadata(self, headers: Mapping[str, str], client_timeout: float) -> Any:
                assert client_timeout <= 5
                asked.append(headers)
                if len(asked) == 1:
                    raise OSError("not there yet")
                return SimpleNamespace(version="2.59.0")

        transport = GrpcAsyncTransport(Address("127.0.0.1:1", grpc=True, tls=False), 1.0, {})
        monkeypatch.setattr(transport, "_connected", Client)
        assert not await transport.can_cancel_natively()
        assert await transport.can_cancel_natively()
        assert await transport.can_cancel_natively()
        assert len(asked) == 2, "asked again after a failure, and remembered"
        assert not await HttpAsyncTransport(Address("x:1", grpc=False, tls=False), 1.0, {}).can_cancel_natively()

    asyncio.run(body())


def test_an_address_names_its_transport() -> None:
    assert isinstance(connect_async(Address.parse("localhost:8000"), 1.0, {}), HttpAsyncTransport)
    assert isinstance(connect_async(Address.parse("grpc://localhost:8001"), 1.0, {}), GrpcAsyncTransport)
