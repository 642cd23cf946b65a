"""What ``triton-sam setup`` writes by default gives the published graphs' masks: through the segmenter, once for each
kind of prompt, and to a two-stage client of the plain encoder and decoder.

Every size and photograph: ``test_masks_equal_reference.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as http
from PIL import Image

from tests.integration.reference import DirectSam2, bilinear, iou
from triton_sam import SAM2TritonClient
from triton_sam.models.specs import Role
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton

#: For an encode on a machine that others keep busy.
SECONDS = 280.0

#: On the photograph of a cup of coffee, 600 x 400.
SPOON, CUP, PLATE = [360.0, 288.0], [282.0, 140.0], [120.0, 80.0]
BOX = [144.0, 16.0, 420.0, 224.0]
PROMPTS: dict[str, dict[str, Any]] = {
    "point": {"points": [SPOON], "labels": [1]},
    "two points, one negative": {"points": [[270.0, 40.0], SPOON], "labels": [1, 0]},
    "box": {"box": BOX},
    "box and point": {"box": BOX, "points": [CUP], "labels": [0]},
}


@pytest.fixture(scope="module")
def direct(graphs: dict[Role, Path]) -> DirectSam2:
    """The two published files, run without anything of the product."""
    return DirectSam2(graphs[Role.ENCODER], graphs[Role.DECODER])


@pytest.fixture(scope="module")
def picture(photographs: Path) -> Image.Image:
    with Image.open(photographs / "coffee.png") as opened:
        return opened.convert("RGB")


@pytest.fixture(scope="module")
def client(real_server: RunningServer, picture: Image.Image) -> Iterator[SAM2TritonClient]:
    with SAM2TritonClient(real_server.urls["HTTP"], timeout=SECONDS) as client:
        client.set_image(np.asarray(picture))
        yield client


@pytest.mark.parametrize("kind", list(PROMPTS))
def test_prompt(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image, kind: str) -> None:
    served = client.segment(**PROMPTS[kind]).masks
    expected = direct.mask(picture, **PROMPTS[kind])
    assert served.masks.shape == (1, picture.height, picture.width)
    assert 0 < expected.sum() < expected.size, "the reference itself found nothing: choose another prompt"
    assert iou(served.masks[0], expected) >= 0.999


@pytest.mark.parametrize("prompt", [{"points": [CUP], "labels": [0]}, {}], ids=["with a point", "alone"])
def test_mask_input(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image, prompt: dict[str, Any]) -> None:
    logits, scores = direct.logits(picture, box=BOX)
    before = logits[int(scores.argmax())]
    served = client.segment(mask_input=before, **prompt).masks
    assert iou(served.masks[0], direct.mask(picture, mask_input=before, **prompt)) >= 0.999


def test_several_objects(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    several = [*PROMPTS.values(), {"points": [PLATE], "labels": [1]}]
    served = client.segment(objects=several).masks
    assert served.objects.tolist() == list(range(len(several)))
    for index, prompt in enumerate(several):
        assert iou(served.masks[index], direct.mask(picture, **prompt)) >= 0.999


def test_multimask(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    logits, scores = direct.logits(picture, **PROMPTS["point"])
    served = client.segment(**PROMPTS["point"], multimask=True).masks
    assert served.masks.shape == (3, picture.height, picture.width)
    np.testing.assert_allclose(served.scores, scores, atol=1e-3)
    for mask, expected in zip(served.masks, logits, strict=True):
        assert iou(mask, bilinear(expected, *picture.size) > 0) >= 0.999


def test_answers_and_the_list_of_models_tell_the_encoder(
    client: SAM2TritonClient,
    real_server: RunningServer,
) -> None:
    told = client.segment(**PROMPTS["point"]).result
    assert (told["model"], told["encoder"]) == ("sam2:tiny", "float32")
    (row,) = httpx.get(f"{real_server.urls['service']}/models", trust_env=False).json()
    assert (row["id"], row["encoder"]) == ("sam2:tiny", "float32")


def tensor(name: str, array: np.ndarray) -> Any:
    given = http.InferInput(name, list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    return given


class TwoStageClient:
    """What existing tools do with a pair that keeps the contract: numpy and tritonclient, nothing of the product."""

    def __init__(self, address: str) -> None:
        self._client = http.InferenceServerClient(address, network_timeout=SECONDS, connection_timeout=SECONDS)
        self._features: list[Any] = []

    def encode(self, picture: Image.Image) -> dict[str, tuple[int, ...]]:
        """Squashes to 1024 x 1024, pixels in [0,1]; gives the shapes of the answers."""
        squashed = np.asarray(picture.resize((1024, 1024), Image.Resampling.BILINEAR), np.float32) / 255
        image = np.ascontiguousarray(squashed.transpose(2, 0, 1)[None])
        names = ["image_embeddings", "high_res_feats_0", "high_res_feats_1"]
        answer = self._client.infer(
            "sam2_encoder", [tensor("image", image)], outputs=[http.InferRequestedOutput(name) for name in names]
        )
        found = {name: answer.as_numpy(name) for name in names}
        self._features = [tensor(name, array) for name, array in found.items()]
        return {name: array.shape for name, array in found.items()}

    def logits(self, points: list[list[float]], labels: list[int]) -> np.ndarray:
        """Points in the 1024 x 1024 square -> [256,256]."""
        coords = tensor("point_coords", np.array([points], np.float32))
        kinds = tensor("point_labels", np.array([labels], np.float32))
        answer = self._client.infer(
            "sam2_decoder",
            [*self._features, coords, kinds],
            outputs=[http.InferRequestedOutput("masks"), http.InferRequestedOutput("iou_predictions")],
        )
        assert answer.as_numpy("iou_predictions").shape == (1, 1)
        masks = answer.as_numpy("masks")
        assert masks.shape == (1, 1, 256, 256)
        return np.asarray(masks[0, 0])


def test_a_two_stage_client(
    client: SAM2TritonClient,
    real_server: RunningServer,
    direct: DirectSam2,
    picture: Image.Image,
) -> None:
    two_stage = TwoStageClient(real_server.urls["HTTP"].removeprefix("http://"))
    assert two_stage.encode(picture) == {
        "image_embeddings": (1, 256, 64, 64),
        "high_res_feats_0": (1, 32, 256, 256),
        "high_res_feats_1": (1, 64, 128, 128),
    }
    for kind, prompt in PROMPTS.items():
        corners = [BOX[:2], BOX[2:]] if "box" in prompt else []
        places = np.array([*corners, *prompt.get("points", [])], np.float64) / picture.size * 1024
        labels = [2, 3][: len(corners)] + prompt.get("labels", [])
        mask = bilinear(two_stage.logits(places.tolist(), labels), *picture.size) > 0
        assert iou(mask, direct.mask(picture, **prompt)) >= 0.98, kind
        assert iou(mask, client.segment(**prompt).masks.masks[0]) >= 0.98, kind
