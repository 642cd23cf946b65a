"""The plain graphs through the embedded ``onnxruntime`` backend: with a full, a minimal and no config.

Whole masks of a two-stage client are in ``test_default_set_up.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from triton_sam.models.specs import ModelSpec, Role
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton


def infer(
    running: RunningServer, model: str, arrays: dict[str, np.ndarray], outputs: list[str]
) -> dict[str, np.ndarray]:
    inputs = []
    for name, array in arrays.items():
        inputs.append(grpc.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(running.urls["gRPC"].removeprefix("grpc://")) as client:
        answer = client.infer(model, inputs, outputs=[grpc.InferRequestedOutput(name) for name in outputs])
        return {name: answer.as_numpy(name) for name in outputs}


@pytest.fixture(scope="module")
def features(real_spec: ModelSpec) -> dict[str, np.ndarray]:
    """Noise in place of an encoder's outputs, under the ready-made names."""
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in real_spec.encoder.outputs}


def decoder_inputs(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is needed, under the contract's names; all else is left to its default."""
    return {
        **{"image_embeddings" if name == "image_embed" else name: array for name, array in features.items()},
        "point_coords": np.array([[[500, 400]], [[100, 900]]], np.float32),
        "point_labels": np.ones((2, 1), np.float32),
    }


def published_inputs(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same for the published decoder, which has no defaults."""
    prompts = {name: array for name, array in decoder_inputs(features).items() if name.startswith("point")}
    blank = {"mask_input": np.zeros((2, 1, 256, 256), np.float32), "has_mask_input": np.zeros(1, np.float32)}
    return {**features, **prompts, **blank}


@pytest.fixture(scope="module")
def expected(graphs: dict[Role, Path], features: dict[str, np.ndarray]) -> list[np.ndarray]:
    """[2,3,256,256] masks and [2,3] scores of the published decoder."""
    session = onnxruntime.InferenceSession(str(graphs[Role.DECODER]), providers=["CPUExecutionProvider"])
    answer: list[np.ndarray] = session.run(["masks", "iou_predictions"], published_inputs(features))
    return answer


def test_all_masks_are_those_of_the_published_decoder(
    real_server: RunningServer, features: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    arrays = decoder_inputs(features) | {"multimask_output": np.ones(1, np.float32)}
    served = infer(real_server, "sam2_decoder", arrays, ["masks", "iou_predictions"])
    np.testing.assert_allclose(served["masks"], expected[0], atol=1e-3 * float(expected[0].std()))
    np.testing.assert_allclose(served["iou_predictions"], expected[1], atol=1e-4)


def test_one_mask_is_that_of_the_best_score(
    real_server: RunningServer, features: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    served = infer(real_server, "sam2_decoder", decoder_inputs(features), ["masks", "iou_predictions"])
    assert served["masks"].shape == (2, 1, 256, 256)
    assert served["iou_predictions"].shape == (2, 1)
    for row, (masks, scores) in enumerate(zip(*expected, strict=True)):
        # Two scores within the tolerance may change places.
        near = [mask for mask, score in zip(masks, scores, strict=True) if score >= scores.max() - 1e-4]
        assert min(float(np.abs(served["masks"][row, 0] - mask).max()) for mask in near) <= 1e-3 * expected[0].std()
        assert abs(float(served["iou_predictions"][row, 0]) - float(scores.max())) <= 1e-4


def test_a_graph_that_refuses_its_inputs_is_an_error_and_goes_on(
    real_server: RunningServer, features: dict[str, np.ndarray]
) -> None:
    wrong = decoder_inputs(features) | {"point_labels": np.ones((2, 3), np.float32)}
    with pytest.raises(InferenceServerException, match="refused its inputs"):
        infer(real_server, "sam2_decoder", wrong, ["masks"])
    assert infer(real_server, "sam2_decoder", decoder_inputs(features), ["masks"])["masks"].shape == (2, 1, 256, 256)


@pytest.mark.parametrize("config", ['backend: "onnxruntime"', 'platform: "onnxruntime_onnx"', None])
def test_minimal_and_absent_configs(
    real_server: RunningServer, real_repository: Path, features: dict[str, np.ndarray], config: str | None
) -> None:
    """A graph without optional inputs: what may be left out has to be told by a config."""
    name = f"plain_{abs(hash(config)) % 10_000}"
    folder = real_repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").hardlink_to(real_repository / "sam2" / "1" / "decoder.onnx")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    process: Any = real_server.supervisor.process
    process.load(name)
    try:
        served = infer(real_server, name, published_inputs(features), ["masks"])
        assert served["masks"].shape == (2, 3, 256, 256)
    finally:
        process.unload(name)
