"""Every kind of prompt on pictures of every shape, by Triton and by the service: masks that are known beforehand.

A mask that is shifted by a pixel, a label or a side that is swapped, an object in another's place: all show here.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic import RADII, assert_mask, expected_logits, expected_score, png
from triton_sam import SAM2TritonClient
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
SIZES = {"square": (256, 256), "wide": (300, 100), "tall": (120, 333), "tiny": (37, 53), "large": (1777, 1201)}


def scene(width: int, height: int) -> Image.Image:
    """Four quarters of colours that are not alike, with a gradient over them: no two places look the same."""
    y, x = np.mgrid[:height, :width]
    colours = np.array([[(200, 40, 40), (40, 200, 40)], [(40, 60, 200), (210, 200, 60)]])
    quarters = colours[(y > 0.55 * height).astype(int), (x > 0.4 * width).astype(int)]
    gradient = np.stack([x / width, y / height, 0.5 * (x / width + y / height)], axis=-1)
    return Image.fromarray(np.clip(quarters + 40 * gradient, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module", params=list(SIZES))
def picture(request: pytest.FixtureRequest) -> Image.Image:
    return scene(*SIZES[request.param])


@pytest.fixture(scope="module", params=["gRPC", "service"])
def client(request: pytest.FixtureRequest, server: RunningServer, picture: Image.Image) -> Iterator[SAM2TritonClient]:
    with SAM2TritonClient(server.urls[request.param]) as client:
        client.set_image(png(picture))
        yield client


def prompts(picture: Image.Image) -> dict[str, dict[str, Any]]:
    def at(*shares: float) -> list[float]:
        return [share * picture.size[index % 2] for index, share in enumerate(shares)]

    point, beside = at(0.35, 0.3), at(0.3, 0.38)
    return {
        "point": {"points": [point], "labels": [1]},
        "near a corner": {"points": [at(0.98, 0.03)], "labels": [1]},
        "negative": {"points": [point, beside], "labels": [1, 0]},
        "two": {"points": [point, at(0.7, 0.8)], "labels": [1, 1]},
        "box": {"box": at(0.2, 0.1, 0.9, 0.45)},
        "box and point": {"box": at(0.25, 0.1, 0.9, 0.33), "points": [point], "labels": [1]},
        "box without a place": {"box": at(0.2, 0.1, 0.9, 0.45), "points": [beside], "labels": [0]},
    }


KINDS = list(prompts(scene(8, 8)))


@pytest.mark.parametrize("kind", KINDS)
def test_prompt(client: SAM2TritonClient, picture: Image.Image, kind: str) -> None:
    prompt = prompts(picture)[kind]
    found = client.segment(**prompt).masks
    assert 0 < found.masks.mean() < 1
    assert_mask(found.masks[0], picture, **prompt)
    first = prompt["box"] if "box" in prompt else prompt["points"][0]
    assert found.scores[0] == pytest.approx(expected_score(picture, first), abs=1e-5)


def test_objects_keep_their_order(client: SAM2TritonClient, picture: Image.Image) -> None:
    several = list(prompts(picture).values())
    found = client.segment(objects=several).masks
    assert found.objects.tolist() == list(range(len(several)))
    for mask, prompt in zip(found.masks, several, strict=True):
        assert_mask(mask, picture, **prompt)


def test_three_masks_of_a_point(client: SAM2TritonClient, picture: Image.Image) -> None:
    prompt = prompts(picture)["point"]
    found = client.segment(**prompt, multimask=True).masks
    for index, radius in enumerate(RADII):
        assert_mask(found.masks[index], picture, **prompt, radius=radius)
        assert found.scores[index] == pytest.approx(expected_score(picture, prompt["points"][0], index), abs=1e-5)


def test_a_mask_goes_in_again(client: SAM2TritonClient, picture: Image.Image) -> None:
    before = expected_logits(picture, **prompts(picture)["box"]).astype(np.float32)
    for prompt in ({}, prompts(picture)["negative"]):
        found = client.segment(**prompt, mask_input=before).masks
        assert_mask(found.masks[0], picture, **prompt, mask_input=before)


def test_logits_of_predict(client: SAM2TritonClient, picture: Image.Image) -> None:
    prompt = prompts(picture)["negative"]
    masks, scores = client.predict(prompt["points"], prompt["labels"])
    np.testing.assert_allclose(masks[0, 0], expected_logits(picture, **prompt), atol=1e-3)
    assert scores[0, 0] == pytest.approx(expected_score(picture, prompt["points"][0]), abs=1e-5)


def test_a_photograph_is_turned_as_its_camera_was(server: RunningServer) -> None:
    """What a person sees counts: the prompt's pixels are those of the turned picture."""
    picture = scene(300, 200)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: a quarter to the right makes it upright
    buffer = io.BytesIO()
    picture.transpose(Image.Transpose.ROTATE_90).save(buffer, "PNG", exif=exif)
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        client.set_image(buffer.getvalue())
        prompt = prompts(picture)["negative"]
        assert_mask(client.segment(**prompt).masks.masks[0], picture, **prompt)


@pytest.mark.parametrize("form", ["bits", "png", "rle"])
def test_cleaned(client: SAM2TritonClient, picture: Image.Image, form: str) -> None:
    """Disjoint parts of one mask: the smaller ones go, and the rest is as it was."""
    prompt = {"points": [[0.15 * picture.width, 0.2 * picture.height], [0.97 * picture.width, 0.95 * picture.height]]}
    plain = client.segment(**prompt).masks.masks[0]
    size = int(plain.sum())
    answer = client.segment(**prompt, format=form, clean={"islands": size})
    expected = clean_mask(plain, Cleaning(islands=size))
    assert answer.result["clean"] == {"holes": 0, "islands": size}
    np.testing.assert_array_equal(answer.masks.masks[0], expected)
    assert 0 < expected.sum() < size
    assert "clean" not in client.segment(**prompt).result
