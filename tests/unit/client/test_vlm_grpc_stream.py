"""Leaving a gRPC stream while its next piece is waited for: older servers must hear a word, never a native cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_sam.client.vlm_client import AsyncTritonVLMClient
from triton_sam.errors import DeadlineExceeded

PATIENCE = 20.0


class OldTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton 2.51 whose model never says a second piece; remembers how its stream ended."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self.asked = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(version="2.51.0")

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for request in requests:
                if "cancel" in request.parameters:
                    self.ended.set_result("told")
                    return
                self.asked.set()
                if not self.silent:
                    yield self._piece()
            await asyncio.sleep(0.5)  # a native cancel also ends the requests, a moment before it comes itself
            self.ended.set_result("half-closed")
        except asyncio.CancelledError:
            self.ended.set_result("cancelled natively")
            raise

    @staticmethod
    def _piece() -> Any:
        answer = service_pb2.ModelStreamInferResponse()
        for name in ("generated_text", "finish_reason"):
            tensor = answer.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(b"a" if name == "generated_text" else b"")
        return answer


@pytest.mark.parametrize(
    ("how", "silent"),
    [  # silent: before the first piece, when a generator that waits cannot be closed
        ("closed", False),
        ("cancelled", True),
        ("cancelled", False),
        ("too slow", True),
        ("too slow", False),
    ],
)
def test_an_old_server_is_told(how: str, silent: bool) -> None:
    async def go() -> str:
        server = grpc.aio.server()
        triton = OldTriton(silent)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = AsyncTritonVLMClient(f"grpc://127.0.0.1:{port}", timeout=1.5 if how == "too slow" else 30, retries=0)
        answer = client.stream("llava", b"image", "What?")
        try:
            if not silent:
                assert await anext(answer) == "a"
            if how == "closed":
                await answer.aclose()
            elif how == "too slow":
                with pytest.raises(DeadlineExceeded):
                    await anext(answer)
            else:
                task = asyncio.ensure_future(anext(answer))
                await asyncio.wait_for(triton.asked.wait(), PATIENCE)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return await asyncio.wait_for(triton.ended, PATIENCE)
        finally:
            await client.close()
            await server.stop(None)

    before = threading.active_count()
    assert asyncio.run(go()) == "told"
    assert threading.active_count() <= before + 2
