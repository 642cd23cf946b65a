"""Paintera's own way to Triton, message by message: one gRPC stream, gzip, ids, priorities, 32 MiB at most.

The networks have random weights. That the profile's models are called and fed as Paintera does is also asked of small
ones at every commit, in ``test_served_exports.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from tritonclient.grpc import service_pb2

from tests.integration.conftest import ExportTrial
from tests.integration.paintera_lane import (
    INPUTS,
    PATIENCE,
    Lane,
    as_paintera_sends,
    connected,
    scaled_and_padded,
    tensors,
)
from triton_sam.repository.profiles import PAINTERA, write_profile_model
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600), pytest.mark.part("exports"), pytest.mark.torch]

#: Model -> the tensors that Paintera looks for in an answer.
OUTPUTS = {
    "sam1_encoder": {"image_embeddings": [1, 256, 64, 64]},
    "sam2.1_large_encoder": {
        "image_embed": [1, 256, 64, 64],
        "high_res_feats_0": [1, 32, 256, 256],
        "high_res_feats_1": [1, 64, 128, 128],
    },
    "sam3_tracker_encoder_fp16": {
        "image_embeddings.0": [1, 32, 288, 288],
        "image_embeddings.1": [1, 64, 144, 144],
        "image_embeddings.2": [1, 256, 72, 72],
    },
}
#: Paintera's name -> ours, where they differ.
OUR_NAMES = {"image_embed": "image_embeddings"}
MODELS = list(INPUTS)
SIDES = dict(zip(MODELS, (1024, 1024, 1008), strict=True))


@pytest.fixture(scope="module")
def running(
    export_trial: ExportTrial, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server of nothing but Paintera's models."""
    folder = tmp_path_factory.mktemp("paintera")
    for model in PAINTERA.models:
        write_profile_model(PAINTERA, model, export_trial(model.model_id), folder / "model_repository")
    settings = Settings(home=folder / "home")
    with serving(ServingOptions(folder / "model_repository", {}, settings, ports=Ports(0, 0, 0, 0))) as started:
        yield started


@pytest.fixture(scope="module")
def stub(running: RunningServer) -> Iterator[Any]:
    with connected(running) as stub:
        yield stub


@pytest.fixture
def lane(stub: Any) -> Iterator[Lane]:
    lane = Lane(stub)
    yield lane
    lane.close()


class Direct:
    """Our exported encoders run by hand, on pixels in [0,1]; each picture once."""

    def __init__(self, export_trial: ExportTrial) -> None:
        self._sessions = {
            model.name: onnxruntime.InferenceSession(
                str(export_trial(model.model_id) / "encoder.onnx"), providers=["CPUExecutionProvider"]
            )
            for model in PAINTERA.models
        }
        self._known: dict[tuple[str, bytes], dict[str, np.ndarray]] = {}

    def __call__(self, model: str, pixels: np.ndarray) -> dict[str, np.ndarray]:
        key = model, pixels.tobytes()
        if key not in self._known:
            session = self._sessions[model]
            names = [output.name for output in session.get_outputs()]
            self._known[key] = dict(zip(names, session.run(names, {INPUTS[model]: pixels}), strict=True))
        return self._known[key]


@pytest.fixture(scope="module")
def direct(export_trial: ExportTrial) -> Direct:
    return Direct(export_trial)


@pytest.fixture(scope="module")
def pictures(photographs: Path) -> list[Image.Image]:
    found = []
    for name in ("coffee.png", "chelsea.png"):
        with Image.open(photographs / name) as opened:
            found.append(opened.convert("RGB"))
    return found


def check(found: dict[str, np.ndarray], model: str, pixels: np.ndarray, direct: Direct) -> None:
    assert {name: list(array.shape) for name, array in found.items()} == OUTPUTS[model]
    for name, array in found.items():
        expected = direct(model, pixels)[OUR_NAMES.get(name, name)]
        np.testing.assert_allclose(array, expected, atol=1e-3 * float(expected.std()), err_msg=name)


def test_every_model_of_the_profile_is_tried_here() -> None:
    assert [model.name for model in PAINTERA.models] == MODELS


@pytest.mark.parametrize("model", MODELS)
def test_ready(stub: Any, model: str) -> None:
    assert stub.ModelReady(service_pb2.ModelReadyRequest(name=model, version=""), timeout=PATIENCE).ready


@pytest.mark.parametrize("model", MODELS)
def test_an_image(lane: Lane, pictures: list[Image.Image], direct: Direct, model: str) -> None:
    pixels = scaled_and_padded(pictures[0], SIDES[model])
    answer = lane.answer(lane.send(model, as_paintera_sends(pixels, model)))
    assert answer.infer_response.model_name == model
    check(tensors(answer), model, pixels, direct)


@pytest.mark.parametrize("priority", [1, 2, 0, None, 5])
def test_priorities(lane: Lane, pictures: list[Image.Image], direct: Direct, priority: int | None) -> None:
    model = "sam1_encoder"
    pixels = scaled_and_padded(pictures[0], SIDES[model])
    check(tensors(lane.answer(lane.send(model, pixels, priority))), model, pixels, direct)


def test_several_requests_in_flight(lane: Lane, pictures: list[Image.Image], direct: Direct) -> None:
    """The slow models are asked first, so that answers may pass each other on the stream."""
    asked = {}
    sam1, sam2, sam3 = MODELS
    for model, which, priority in ((sam3, 0, 2), (sam2, 0, 5), (sam1, 0, 2), (sam3, 1, 1), (sam1, 1, 1)):
        pixels = scaled_and_padded(pictures[which], SIDES[model])
        asked[lane.send(model, as_paintera_sends(pixels, model), priority)] = model, pixels
    for request_id, (model, pixels) in asked.items():
        check(tensors(lane.answer(request_id)), model, pixels, direct)


@pytest.mark.parametrize("model", MODELS)
def test_an_error_carries_its_id_and_the_stream_goes_on(
    lane: Lane, pictures: list[Image.Image], direct: Direct, model: str
) -> None:
    wrong = lane.send(model, np.zeros((1, 3, 512, 512), np.float32))
    pixels = scaled_and_padded(pictures[0], SIDES[model])
    right = lane.send(model, as_paintera_sends(pixels, model))
    assert "shape" in lane.answer(wrong).error_message
    check(tensors(lane.answer(right)), model, pixels, direct)


def test_a_model_that_is_not_there_is_an_error_with_its_id(lane: Lane) -> None:
    unknown = lane.put(service_pb2.ModelInferRequest(model_name="sam4_encoder", id=str(uuid.uuid4())))
    assert "sam4_encoder" in lane.answer(unknown).error_message
