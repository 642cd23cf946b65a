"""All families on one server: ready-made graphs beside exports (random weights), segmenters beside their raw twins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc
from PIL import Image

from tests.integration.conftest import ExportTrial
from tests.integration.serve_folder import serve_folder
from triton_sam import SAM2TritonClient
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, graphs_from_json
from triton_sam.repository.segmenters import find_segmenters, write_models
from triton_sam.repository.setup import write_exported
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600), pytest.mark.part("exports"), pytest.mark.torch]

#: Segmenter -> the model that was exported for it.
EXPORTED = {"sam1": "sam1:vit_h", "sam2.1_small": "sam2.1:small", "sam3": "sam3:full"}
POINTS, LABELS = [[365.0, 290.0], [120.0, 250.0]], [1, 0]
BOX = [144.0, 16.0, 420.0, 224.0]
#: As a share of the reference's deviation: the graphs are the same, the number of threads may not be.
TOLERANCE = 1e-3


class DirectExport:
    """An export's two graphs run by hand."""

    def __init__(self, folder: Path) -> None:
        self.graphs = graphs_from_json((folder / "graphs.json").read_bytes())
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
        )
        self._features: dict[str, np.ndarray] = {}

    def encode(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        names = [output.name for output in self.encoder.get_outputs()]
        image = self.encoder.get_inputs()[0].name
        return dict(zip(names, self.encoder.run(names, {image: pixels}), strict=True))

    def decode(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = ["masks", "iou_predictions"]
        return dict(zip(names, self.decoder.run(names, feeds), strict=True))

    def look_at(self, picture: Image.Image, *, keeps_aspect: bool) -> None:
        side = self.graphs.side
        size = [round(length * side / max(picture.size)) for length in picture.size] if keeps_aspect else [side, side]
        self._scale = [inner / outer for inner, outer in zip(size, picture.size, strict=True)]
        inner = np.asarray(picture.resize(size, Image.Resampling.BILINEAR), np.float32) / 255
        square = np.full((side, side, 3), (0.485, 0.456, 0.406), np.float32)  # what the graph normalises to zero
        square[: inner.shape[0], : inner.shape[1]] = inner
        self._features = self.encode(np.ascontiguousarray(square.transpose(2, 0, 1)[None]))

    def predict(
        self, points: Any = (), labels: Any = (), box: Any = (), mask: Any = None, multimask: bool = False
    ) -> Any:
        coords = np.array([*box, *np.ravel(points)], np.float32).reshape(1, -1, 2) * np.array(self._scale, np.float32)
        feeds = self._features | {
            "point_coords": coords.astype(np.float32),
            "point_labels": np.array([[2, 3] * bool(len(box)) + list(labels)], np.float32),
            "multimask_output": np.array([multimask], np.float32),
        }
        if mask is not None:
            feeds |= {"mask_input": mask.clip(-32, 32)[None], "has_mask_input": np.ones(1, np.float32)}
        return self.decode(feeds)


@pytest.fixture(scope="module")
def picture(photographs: Path) -> Image.Image:
    with Image.open(photographs / "coffee.png") as opened:
        return opened.convert("RGB")


@pytest.fixture(scope="module")
def exported(export_trial: ExportTrial, picture: Image.Image) -> dict[str, DirectExport]:
    direct = {name: DirectExport(export_trial(model_id)) for name, model_id in EXPORTED.items()}
    for name, graphs in direct.items():
        graphs.look_at(picture, keeps_aspect=name == "sam1")
    return direct


@pytest.fixture(scope="module")
def running(
    repository: Path, spec: ModelSpec, export_trial: ExportTrial, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("side-by-side")
    models = folder / "model_repository"
    write_models(spec, repository / "sam2/1/encoder.onnx", repository / "sam2/1/decoder.onnx", models)
    for name, model_id in EXPORTED.items():
        written = write_exported(get_spec(model_id), export_trial(model_id), models)
        assert written == [name, f"{name}_encoder", f"{name}_decoder"]
    settings = Settings(home=folder / "home")
    with serving(
        ServingOptions(models, find_segmenters(models), settings, ports=Ports(0, 0, 0, 0), raw=True)
    ) as started:
        yield started


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=TOLERANCE * float(expected.std()))


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_each_name_and_id_answers_for_its_own_model(
    running: RunningServer, exported: dict[str, DirectExport], picture: Image.Image, protocol: str
) -> None:
    logits = {}
    for asked in ("sam2", "sam2:tiny", "sam2.1_small", "sam2.1:small"):
        with SAM2TritonClient(running.urls[protocol], asked) as client:
            assert client.is_ready()
            client.set_image(picture)
            logits[asked], _ = client.predict(POINTS, LABELS, multimask_output=True)
            assert client.segment(POINTS, LABELS).result["model"] == (
                "sam2.1:small" if "small" in asked else "sam2:tiny"
            )
    expected = exported["sam2.1_small"].predict(POINTS, LABELS, multimask=True)["masks"]
    for asked in ("sam2.1_small", "sam2.1:small"):
        close(logits[asked], expected)
    np.testing.assert_array_equal(logits["sam2"], logits["sam2:tiny"])
    assert np.abs(logits["sam2"] - expected).max() > expected.std(), "both models gave the same masks"


@pytest.mark.parametrize("name", EXPORTED)
def test_a_family_answers_as_its_graphs_do(
    running: RunningServer, exported: dict[str, DirectExport], picture: Image.Image, name: str
) -> None:
    direct = exported[name]
    side = 288 if name == "sam3" else 256
    with SAM2TritonClient(running.urls["HTTP"], name) as client:
        client.set_image(picture)

        def compare(multimask: bool = False, **prompt: Any) -> np.ndarray:
            renamed = {"points": "point_coords", "labels": "point_labels", "mask": "mask_input"}
            logits, scores = client.predict(
                **{renamed.get(key, key): value for key, value in prompt.items()}, multimask_output=multimask
            )
            assert logits.shape == (1, 3 if multimask else 1, side, side)
            expected = direct.predict(**prompt, multimask=multimask)
            close(logits, expected["masks"])
            np.testing.assert_allclose(scores, expected["iou_predictions"], atol=1e-3)
            return logits

        before = compare(points=POINTS, labels=LABELS)
        compare(points=POINTS, labels=LABELS, multimask=True)
        compare(box=BOX)
        compare(box=BOX, points=POINTS[:1], labels=[1])
        compare(points=POINTS[:1], labels=[1], mask=before[0])
        compare(mask=before[0])
        found = client.segment(objects=[{"points": POINTS, "labels": LABELS}, {"box": BOX}])
        assert found.masks.masks.shape == (2, picture.height, picture.width)
        assert found.result["model"] == EXPORTED[name]


def infer(running: RunningServer, model: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whatever a raw model gives to these inputs and no others."""
    inputs = []
    for name, array in feeds.items():
        inputs.append(grpc.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(running.urls["gRPC"].removeprefix("grpc://")) as client:
        answer = client.infer(model, inputs)
        return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}


@pytest.mark.parametrize("name", EXPORTED)
def test_raw_twins(running: RunningServer, exported: dict[str, DirectExport], name: str) -> None:
    direct = exported[name]
    side = direct.graphs.side
    pixels = np.random.default_rng(3).random((2, 3, side, side), np.float32)
    expected = direct.encode(pixels)
    served = infer(running, f"{name}_encoder", {direct.graphs.encoder.image: pixels})
    assert served.keys() == expected.keys() == dict(direct.graphs.encoder.outputs).keys()
    for output, array in expected.items():
        assert len(array) == 2
        close(served[output], array)

    # Only what has no default; then the whole picture; then several prompts, each on a picture of its own.
    required = {
        direct.graphs.encoder.embedding: expected[direct.graphs.encoder.embedding][:1],
        "point_coords": np.array([[[500, 400], [100, 900]]], np.float32),
        "point_labels": np.array([[1, 0]], np.float32),
    }
    whole = required | {output: array[:1] for output, array in expected.items()}
    both = expected | {
        "point_coords": np.array([[[500, 400]], [[100, 900]]], np.float32),
        "point_labels": np.ones((2, 1), np.float32),
    }
    three = {"multimask_output": np.ones(1, np.float32)}
    mask_side = direct.graphs.decoder.mask_side
    for feeds, rows, masks in ((required, 1, 1), (whole, 1, 1), (whole | three, 1, 3), (both | three, 2, 3)):
        answer = infer(running, f"{name}_decoder", feeds)
        assert answer["masks"].shape == (rows, masks, mask_side, mask_side)
        wanted = direct.decode(feeds)
        close(answer["masks"], wanted["masks"])
        np.testing.assert_allclose(answer["iou_predictions"], wanted["iou_predictions"], atol=1e-3)


def test_another_default(
    repository: Path, spec: ModelSpec, export_trial: ExportTrial, picture: Image.Image, tmp_path: Path
) -> None:
    """The export takes the family's name, and what had it goes on under its own."""
    models, small = tmp_path / "model_repository", get_spec("sam2.1:small")
    write_models(spec, repository / "sam2/1/encoder.onnx", repository / "sam2/1/decoder.onnx", models)
    assert write_exported(small, export_trial(small.id), models)[0] == "sam2.1_small"
    written = write_exported(small, export_trial(small.id), models, make_default=True)
    assert written == ["sam2", "sam2_encoder", "sam2_decoder"]
    assert sorted(path.name for path in models.iterdir()) == [
        *("sam2", "sam2_decoder", "sam2_encoder"),
        *("sam2_tiny", "sam2_tiny_decoder", "sam2_tiny_encoder"),
    ]
    with serve_folder(models, tmp_path / "home") as running:
        for asked, answers in (("sam2", small.id), (small.id, small.id), ("sam2_tiny", spec.id), (spec.id, spec.id)):
            with SAM2TritonClient(running.urls["HTTP"], asked) as client:
                client.set_image(picture)
                assert client.segment(POINTS, LABELS).result["model"] == answers
