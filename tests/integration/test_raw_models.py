"""The plain graphs through the embedded ``onnxruntime`` backend: with a full, a minimal and no config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from triton_sam.serving import Running
from triton_sam.specs import Role

pytestmark = pytest.mark.triton


def infer(running: Running, model: str, arrays: dict[str, np.ndarray], outputs: list[str]) -> dict[str, np.ndarray]:
    inputs = []
    for name, array in arrays.items():
        inputs.append(grpc.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(running.urls["gRPC"].removeprefix("grpc://")) as client:
        answer = client.infer(model, inputs, outputs=[grpc.InferRequestedOutput(name) for name in outputs])
        return {name: answer.as_numpy(name) for name in outputs}


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((1, 3, 1024, 1024), np.float32)


@pytest.fixture(scope="module")
def features(graphs: dict[Role, Path], pixels: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(graphs[Role.ENCODER]), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"image": pixels}), strict=True))


def decoder_inputs(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        **features,
        "point_coords": np.array([[[500, 400]], [[100, 900]]], np.float32),
        "point_labels": np.ones((2, 1), np.float32),
        "mask_input": np.zeros((2, 1, 256, 256), np.float32),
        "has_mask_input": np.zeros(1, np.float32),
    }


def test_encoder_equals_its_graph(server: Running, pixels: np.ndarray, features: dict[str, np.ndarray]) -> None:
    served = infer(server, "sam2_encoder", {"image": pixels}, list(features))
    for name, expected in features.items():
        np.testing.assert_allclose(served[name], expected, atol=2e-4 * float(expected.std()) + 1e-5)


def test_decoder_equals_its_graph(server: Running, graphs: dict[Role, Path], features: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(str(graphs[Role.DECODER]), providers=["CPUExecutionProvider"])
    arrays = decoder_inputs(features)
    expected = session.run(["masks", "iou_predictions"], arrays)
    served = infer(server, "sam2_decoder", arrays, ["masks", "iou_predictions"])
    np.testing.assert_allclose(served["masks"], expected[0], atol=1e-3 * float(expected[0].std()))
    np.testing.assert_allclose(served["iou_predictions"], expected[1], atol=1e-4)


def test_a_graph_that_refuses_its_inputs_is_an_error_and_goes_on(
    server: Running, features: dict[str, np.ndarray]
) -> None:
    wrong = decoder_inputs(features) | {"point_labels": np.ones((2, 3), np.float32)}
    with pytest.raises(InferenceServerException, match="refused its inputs"):
        infer(server, "sam2_decoder", wrong, ["masks"])
    assert infer(server, "sam2_decoder", decoder_inputs(features), ["masks"])["masks"].shape == (2, 3, 256, 256)


@pytest.mark.parametrize("config", ['backend: "onnxruntime"', 'platform: "onnxruntime_onnx"', None])
def test_minimal_and_absent_configs(
    server: Running, repository: Path, features: dict[str, np.ndarray], config: str | None
) -> None:
    name = f"plain_{abs(hash(config)) % 10_000}"
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").hardlink_to(repository / "sam2_decoder" / "1" / "model.onnx")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    process: Any = server.supervisor.process
    process.load(name)
    try:
        served = infer(server, name, decoder_inputs(features), ["masks"])
        assert served["masks"].shape == (2, 3, 256, 256)
    finally:
        process.unload(name)
