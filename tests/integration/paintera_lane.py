"""An imitation of Paintera's Triton client: one gRPC stream, gzip, ids, priorities, messages of at most 32 MiB.

Written with gRPC's plain stubs, like a client in another language.
"""

from __future__ import annotations

import contextlib
import queue
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_sam.serving import RunningServer

INBOUND_LIMIT = 32 * 1024 * 1024
PATIENCE = 240.0
#: Model -> the name of its input.
INPUTS = {"sam1_encoder": "image", "sam2.1_large_encoder": "image", "sam3_tracker_encoder_fp16": "pixel_values"}


@contextlib.contextmanager
def connected(running: RunningServer) -> Iterator[Any]:
    """A gRPC stub with Paintera's options."""
    address = running.urls["gRPC"].removeprefix("grpc://")
    options = [("grpc.max_receive_message_length", INBOUND_LIMIT), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


class Lane:
    """One of Paintera's streams: requests are sent at once, and responses are matched by their ids."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream = stub.ModelStreamInfer(
            iter(self._requests.get, None), compression=grpc.Compression.Gzip, timeout=PATIENCE
        )
        self._answers: dict[str, Any] = {}

    def send(self, model: str, pixels: np.ndarray, priority: int | None = 5) -> str:
        request = service_pb2.ModelInferRequest(model_name=model, id=str(uuid.uuid4()))
        request.inputs.add(name=INPUTS[model], datatype="FP32", shape=pixels.shape)
        request.raw_input_contents.append(pixels.astype("<f4").tobytes())
        if priority is not None:
            request.parameters["priority"].int64_param = priority
        return self.put(request)

    def put(self, request: Any) -> str:
        self._requests.put(request)
        return str(request.id)

    def answer(self, request_id: str) -> Any:
        while request_id not in self._answers:
            answer = next(self._stream)
            self._answers[answer.infer_response.id] = answer
        return self._answers[request_id]

    def close(self) -> None:
        self._requests.put(None)
        assert list(self._stream) == [], "there were more answers than requests"


def tensors(answer: Any) -> dict[str, np.ndarray]:
    """The tensors of a response, which must be raw FP32, as Paintera requires."""
    assert answer.error_message == ""
    assert answer.ByteSize() < INBOUND_LIMIT
    found = {}
    response = answer.infer_response
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        assert output.datatype == "FP32"
        found[output.name] = np.frombuffer(raw, "<f4").reshape(list(output.shape))
    return found


def scaled_and_padded(picture: Image.Image, side: int) -> np.ndarray:
    """[1,3,side,side] in [0,1]: the longest side fits, black at the right and below."""
    scale = side / max(picture.size)
    inner = picture.resize([int(length * scale) for length in picture.size], Image.Resampling.NEAREST)
    square = Image.new("RGB", (side, side))
    square.paste(inner, (0, 0))
    return np.ascontiguousarray(np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 255)


def as_paintera_sends(pixels: np.ndarray, model: str) -> np.ndarray:
    return pixels * 2 - 1 if model == "sam3_tracker_encoder_fp16" else pixels
