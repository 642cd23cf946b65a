"""Real weights on the torch engine behind the real server, against transformers' own network.

The engine runs on a CPU here, with the same steps as on a GPU but for what only a GPU has: captured graphs, compiled
kernels and JPEG decoding. On a GPU `triton-sam bench` measures it.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.integration.exported import KINDS, SCENES, Exports, Truth
from tests.integration.reference import iou
from tests.integration.serve_folder import serve_folder
from tests.integration.torch_reference import TorchReference
from tests.unit.export.small import assert_close
from triton_sam import SAM2TritonClient
from triton_sam.core.rle import from_rle
from triton_sam.export.network_file import write_random_network
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import NETWORK_FILE, EngineChoice, exported_graphs
from triton_sam.models.weights import WeightStore
from triton_sam.networks.segmenters import build
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.segmenters import write_models
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600), pytest.mark.torch]
every_model = pytest.mark.part("exports")
#: Of the small image that a network with random weights is given at every commit.
SIDE = 256
#: Numbers of the encoder -> how well a mask must agree. Rows are decoded in float32 on a CPU.
BOUNDS = {"float32": 0.998, "float16": 0.99}
_HALVES = pytest.mark.skipif(
    platform.machine() == "aarch64",
    reason="torch multiplies halves some hundred times as slowly as float32 on ARM processors without bfloat16",
)


class Served:
    def __init__(self, running: RunningServer, name: str, bound: float, truth: Truth) -> None:
        self.running = running
        self.name = name
        self.bound = bound
        self.truth = truth

    def client(self) -> SAM2TritonClient:
        return SAM2TritonClient(self.running.urls["HTTP"], self.name)


@pytest.fixture(
    scope="module",
    params=[
        ("sam1:mobile", "float32"),
        ("sam2:tiny", "float32"),
        pytest.param(("sam1:mobile", "float16"), marks=_HALVES),
    ],
    ids="-".join,
)
def served(
    request: pytest.FixtureRequest,
    exports: Exports,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    model_id, dtype = request.param
    checkpoint = exports.checkpoint(model_id)
    folder: Path = tmp_path_factory.mktemp("torch")
    (name,) = set_up(
        SetupRequest(
            get_spec(model_id),
            WeightStore(folder),
            folder / "models",
            export=ExportRequest(checkpoint),
            engine=EngineChoice.TORCH_ONLY,
        )
    )
    wanted = {"engine": "torch", "device": "cpu", "torch_dtype": dtype}
    with serve_folder(folder / "models", folder / "home", **wanted) as running:
        yield Served(running, name, BOUNDS[dtype], exports.truth(model_id))


@pytest.fixture(scope="module")
def small_network(
    embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, Any]]:
    """(a server, the network that it runs): the smallest of the catalogue with random weights."""
    spec = get_spec("sam1:mobile")
    spec = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, SIDE))
    folder: Path = tmp_path_factory.mktemp("small")
    weights = write_random_network(spec, folder / NETWORK_FILE)
    write_models(spec, None, None, folder / "models", name="sam1", extras={NETWORK_FILE: weights})
    network = build(spec.architecture, SIDE)
    network.load_state_dict(load_file(weights))
    with serve_folder(folder / "models", folder / "home", engine="torch", device="cpu") as running:
        yield running, network


def test_a_small_network_equals_transformers_own(small_network: tuple[RunningServer, Any], photographs: Path) -> None:
    running, network = small_network
    reference = TorchReference(network, SIDE, keeps_aspect=True)
    with Image.open(photographs / "coffee.png") as opened:
        # At the model's own size, with a padding: PIL rounds the pixels that it scales, the engine does not.
        picture = opened.convert("RGB").resize((SIDE, SIDE * 3 // 4))
    points, labels, box = [[155.0, 140.0], [50.0, 120.0]], [1, 0], [61.0, 8.0, 179.0, 108.0]
    with SAM2TritonClient(running.urls["HTTP"], "sam1") as client:
        client.set_image(picture)
        for prompt in ({"points": points, "labels": labels}, {"box": box}, {"box": box, "points": points[:1]}):
            logits, scores = client.predict(
                prompt.get("points"), prompt.get("labels"), prompt.get("box"), multimask_output=True
            )
            expected, expected_scores = reference.logits(picture, **prompt, multimask=True)
            assert_close(logits[0], expected)
            np.testing.assert_allclose(scores[0], expected_scores, atol=1e-3)
            large = reference.large_logits(picture, **prompt, multimask=True)
            for form in ("bits", "png"):
                unlike = client.segment(**prompt, multimask=True, format=form).masks.masks != (large > 0)
                assert np.abs(large[unlike]).max(initial=0.0) <= 2e-3 * large.std(), form


@every_model
def test_every_kind_of_prompt(served: Served) -> None:
    with served.client() as client:
        for name in SCENES if served.bound > 0.99 else ("coffee",):
            client.set_image(served.truth.file(name))
            for kind in KINDS:
                found = client.segment(**served.truth.prompts(name)[kind]).masks.masks
                assert iou(found[0], served.truth.masks(name, kind)[0]) >= served.bound, (name, kind)


@every_model
def test_every_form_of_an_answer_is_the_same_mask(served: Served) -> None:
    """Pixels are made by the engine, run lengths by the host."""
    with served.client() as client:
        client.set_image(served.truth.file("coffee"))
        prompt = served.truth.prompts("coffee")["point"]
        bits = client.segment(**prompt).masks.masks
        for form in ("png", "rle"):
            answer = client.segment(**prompt, format=form)
            found = from_rle(answer.result["mask"]["data"]) if form == "rle" else answer.masks.masks[0]
            assert (found != bits[0]).mean() < 1e-5, form


@every_model
def test_clicks_on_several_images_at_once_are_each_their_own(served: Served) -> None:
    """They meet in one batch of the decoder; each must be as if it were alone."""
    names = list(SCENES)
    barrier = threading.Barrier(len(names))

    def ask(name: str) -> list[np.ndarray]:
        with served.client() as client:
            client.set_image(served.truth.file(name))
            barrier.wait(timeout=120)
            return [client.segment(**served.truth.prompts(name)[kind]).masks.masks[0] for kind in KINDS[:4]]

    with ThreadPoolExecutor(len(names)) as pool:
        answers = dict(zip(names, pool.map(ask, names), strict=True))
    for name, masks in answers.items():
        for kind, mask in zip(KINDS, masks, strict=False):
            assert iou(mask, served.truth.masks(name, kind)[0]) >= min(served.bound, 0.98), (name, kind)


@every_model
def test_an_embedding_goes_out_and_comes_back(served: Served) -> None:
    import tritonclient.http as triton

    with served.client() as client:
        key = client.set_image(served.truth.file("coffee"))
        prompt = served.truth.prompts("coffee")["point"]
        expected = client.segment(**prompt).masks.masks[0]
    assert key
    address = served.running.urls["HTTP"].removeprefix("http://")
    with triton.InferenceServerClient(address) as plain:
        image = np.frombuffer(served.truth.file("coffee").read_bytes(), np.uint8)
        sent = triton.InferInput("image", [len(image)], "UINT8")
        sent.set_data_from_numpy(image)
        wanted = [triton.InferRequestedOutput("embedding")]
        embedding = plain.infer(served.name, [sent], outputs=wanted).as_numpy("embedding")
        assert embedding.dtype == np.float32
        assert embedding.shape == (1, 256, 64, 64)
        back = triton.InferInput("embedding", list(embedding.shape), "FP32")
        back.set_data_from_numpy(embedding)
        text = triton.InferInput("prompt_json", [1], "BYTES")
        text.set_data_from_numpy(np.array([_json(prompt).encode()], dtype=object))
        masks = plain.infer(served.name, [back, text], outputs=[triton.InferRequestedOutput("masks")]).as_numpy("masks")
    unpacked = np.unpackbits(masks[0], axis=1, count=expected.shape[1]).astype(bool)
    assert iou(unpacked, expected) > 0.999


def _json(prompt: dict[str, object]) -> str:
    import json

    return json.dumps(prompt | {"format": "bits"})
