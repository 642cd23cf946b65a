"""``everything`` over gRPC, against a small server that speaks Triton's protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit import everything_messages as everything
from triton_sam import SpeculativeSAM2Client

PATIENCE = 20.0
KEY = "a" * 64


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton 2.51; its stream waits before message ``hold``, if there is one, until its session is cancelled."""

    def __init__(self, hold: int | None) -> None:
        self.hold = hold
        self.asked: list[Any] = []
        self.cancels: list[Any] = []
        self.cancelled = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(version="2.51.0")

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.cancels.append(request)
        self.cancelled.set()
        answer = service_pb2.ModelInferResponse()
        _add(answer, {"cancelled": 1})
        return answer

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            self.asked.append(await anext(aiter(requests)))
            for index, message in enumerate(everything.messages()):
                if index == self.hold:
                    await asyncio.wait_for(self.cancelled.wait(), PATIENCE)
                    yield service_pb2.ModelStreamInferResponse(error_message="cancelled [cancelled]")
                    self.ended.set_result("by its session")
                    return
                answer = service_pb2.ModelStreamInferResponse()
                _add(answer.infer_response, message)
                yield answer
            last = service_pb2.ModelStreamInferResponse()
            last.infer_response.parameters["triton_final_response"].bool_param = True
            yield last
            self.ended.set_result("complete")
        except asyncio.CancelledError:
            self.ended.set_result("cancelled natively")
            raise


def _add(response: Any, document: Any) -> None:
    tensor = response.outputs.add(name="result_json", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(json.dumps(document).encode())


@pytest.mark.parametrize("hold", [None, 2])
def test_a_stream_and_its_cancel(hold: int | None) -> None:
    async def go() -> None:
        server = grpc.aio.server()
        triton = Triton(hold)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        seen = asyncio.Event()
        try:
            async with SpeculativeSAM2Client(f"grpc://127.0.0.1:{port}", retries=0) as client:
                search = client.everything_async(
                    image_key=KEY, points_per_side=8, on_progress=lambda step: step.done and seen.set()
                )
                task = asyncio.create_task(search)
                await asyncio.wait_for(seen.wait(), PATIENCE)
                if hold is None:
                    assert len(await task or ()) == len(everything.MASKS)
                else:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                # An old server is not cancelled natively: that may end it.
                assert await asyncio.wait_for(triton.ended, PATIENCE) == (
                    "complete" if hold is None else "by its session"
                )
        finally:
            await server.stop(None)
        [request] = triton.asked
        assert request.model_name == "sam2_stream"
        assert {tensor.name for tensor in request.inputs} == {"image_key", "prompt_json"}
        for cancel in triton.cancels:
            assert cancel.model_name == "sam2"
            assert cancel.parameters["session_id"] == request.parameters["session_id"]
            assert cancel.parameters["only"].int64_param == request.parameters["sequence"].int64_param
        assert len(triton.cancels) == (0 if hold is None else 1)

    asyncio.run(go())
