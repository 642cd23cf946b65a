"""The headers of a call go with that call and no other, whichever way it takes: a trace hangs on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit.client.test_vlm_http_stream import ANSWER, EventServer
from triton_sam.client.async_transport import GrpcAsyncTransport, HttpAsyncTransport
from triton_sam.client.wire import Address, Call
from triton_sam.errors import TritonSamError

OWN = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
CALL = Call("llava", {"text": np.array([b"What?"], dtype=object)}, ("generated_text",), headers=OWN)


class Listening(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Remembers what stood in the heads of calls, and answers nothing of use."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.heard.append(dict(context.invocation_metadata()))
        return service_pb2.ModelInferResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.heard.append(dict(context.invocation_metadata()))
        yield service_pb2.ModelStreamInferResponse(error_message="nothing of use")


@pytest.mark.parametrize("streams", [False, True], ids=["one answer", "a stream"])
def test_by_grpc(streams: bool) -> None:
    async def go() -> dict[str, Any]:
        server, triton = grpc.aio.server(), Listening()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        transport = GrpcAsyncTransport(Address.parse(f"grpc://127.0.0.1:{port}"), 20.0, {"authorization": "Bearer x"})
        try:
            with contextlib.suppress(TritonSamError):
                if streams:
                    async for _ in transport.stream(CALL):
                        pass
                else:
                    await transport.infer(CALL)
        finally:
            await transport.close()
            await server.stop(None)
        (heard,) = triton.heard
        return heard

    heard = asyncio.run(go())
    assert heard["traceparent"] == OWN["traceparent"]
    assert heard["authorization"] == "Bearer x"


def test_a_stream_by_http() -> None:
    async def go(address: str) -> None:
        transport = HttpAsyncTransport(Address.parse(address), 20.0, {"authorization": "Bearer x"})
        try:
            async for _ in transport.stream(CALL):
                pass
        finally:
            await transport.close()

    with contextlib.closing(EventServer(200, ANSWER)) as server:
        asyncio.run(go(server.address))
    (heard,) = server.heads
    assert heard["traceparent"] == OWN["traceparent"]
    assert heard["authorization"] == "Bearer x"
