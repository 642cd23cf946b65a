"""A mask is right, not just there: served masks against the published graphs run directly, for every size and
photograph. Once for each kind of prompt on every commit: ``test_default_set_up.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.reference import DirectSam2, iou
from triton_sam import SAM2TritonClient
from triton_sam.models.specs import Role
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("masks")]

#: name -> (photograph, size to bring it to): three photographs, aspect 1:3 to 3:1, 64 px to 6000 px.
PICTURES = {
    "coffee": ("coffee.png", None),
    "cat": ("chelsea.png", None),
    "coins": ("coins.png", None),
    "square-64": ("coffee.png", (64, 64)),
    "wide-64": ("coffee.png", (192, 64)),
    "tall-900": ("chelsea.png", (300, 900)),
    "wide-6000": ("coffee.png", (6000, 2000)),
    "tall-6000": ("chelsea.png", (2000, 6000)),
}


@pytest.fixture(scope="module")
def direct(graphs: dict[Role, Path]) -> DirectSam2:
    return DirectSam2(graphs[Role.ENCODER], graphs[Role.DECODER])


@pytest.fixture(scope="module", params=list(PICTURES))
def picture(request: pytest.FixtureRequest, photographs: Path) -> Image.Image:
    name, size = PICTURES[request.param]
    with Image.open(photographs / name) as opened:
        rgb = opened.convert("RGB")
    return rgb if size is None else rgb.resize(size, Image.Resampling.LANCZOS)


@pytest.fixture(scope="module")
def client(real_server: RunningServer, picture: Image.Image) -> Iterator[SAM2TritonClient]:
    with SAM2TritonClient(real_server.urls["HTTP"]) as client:
        client.set_image(np.asarray(picture))
        yield client


def at(picture: Image.Image, x: float, y: float) -> list[float]:
    """A place in the picture, given as shares of its sides."""
    return [x * picture.width, y * picture.height]


def corners(picture: Image.Image) -> list[float]:
    return [*at(picture, 0.24, 0.04), *at(picture, 0.70, 0.56)]


def prompts(picture: Image.Image) -> dict[str, dict[str, list[float] | list[list[float]] | list[int]]]:
    return {
        "point": {"points": [at(picture, 0.6, 0.72)], "labels": [1]},
        "two points": {"points": [at(picture, 0.45, 0.1), at(picture, 0.6, 0.72)], "labels": [1, 0]},
        "box": {"box": corners(picture)},
        "box + point": {"box": corners(picture), "points": [at(picture, 0.47, 0.35)], "labels": [0]},
    }


@pytest.mark.parametrize("kind", ["point", "two points", "box", "box + point"])
def test_prompt(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image, kind: str) -> None:
    prompt = prompts(picture)[kind]
    served = client.segment(**prompt).masks  # type: ignore[arg-type]
    expected = direct.mask(picture, **prompt)
    assert served.masks.shape == (1, picture.height, picture.width)
    assert 0 < expected.sum() < expected.size, "the reference itself found nothing: choose another prompt"
    assert iou(served.masks[0], expected) >= 0.999


def test_mask_input(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    box = corners(picture)
    logits, scores = direct.logits(picture, box=box)
    before = logits[int(scores.argmax())]
    prompt = {"points": [at(picture, 0.47, 0.35)], "labels": [0], "mask_input": before}
    served = client.segment(**prompt).masks  # type: ignore[arg-type]
    assert iou(served.masks[0], direct.mask(picture, **prompt)) >= 0.999


def test_mask_input_alone(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    logits, scores = direct.logits(picture, box=corners(picture))
    before = logits[int(scores.argmax())]
    served = client.segment(mask_input=before).masks
    assert iou(served.masks[0], direct.mask(picture, mask_input=before)) >= 0.999


def test_several_objects_in_one_request(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    several = list(prompts(picture).values())
    several.append({"points": [at(picture, 0.2, 0.2)], "labels": [1]})
    served = client.segment(objects=several).masks
    assert served.objects.tolist() == list(range(len(several)))
    for index, prompt in enumerate(several):
        assert iou(served.masks[index], direct.mask(picture, **prompt)) >= 0.999


def test_logits_of_predict(client: SAM2TritonClient, direct: DirectSam2, picture: Image.Image) -> None:
    point = at(picture, 0.6, 0.72)
    expected, expected_scores = direct.logits(picture, points=[point], labels=[1])
    masks, scores = client.predict(point_coords=[point], point_labels=[1], multimask_output=True)
    assert masks.shape == (1, 3, 256, 256)
    assert masks.dtype == np.float32
    # The served encoder is the converted file: equal arithmetic, another order of sums.
    np.testing.assert_allclose(masks[0], expected, atol=0.02)
    np.testing.assert_allclose(scores[0], expected_scores, atol=1e-3)
    best, best_score = client.predict(point_coords=[point], point_labels=[1])
    assert best.shape == (1, 1, 256, 256)
    np.testing.assert_array_equal(best[0, 0], masks[0, int(scores[0].argmax())])
    assert best_score.shape == (1, 1)
