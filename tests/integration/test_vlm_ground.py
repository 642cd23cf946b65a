"""Ask, then segment, through the real Triton: what a model points at arrives as masks, to the pixel.

The analytic segmenter's mask of a box is the box, and of a point the disc of its colour around it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.analytic import analytic_spec, assert_mask, write_analytic
from tests.integration.vlm_serving import data_url, png, serving_vlms
from triton_sam.client.vlm_calls import Region
from triton_sam.client.vlm_client import Grounded, TritonVLMClient
from triton_sam.core.masks import decode
from triton_sam.errors import InvalidInput, NotFound, Unsupported
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
DOORS = ("HTTP", "gRPC", "service")


@pytest.fixture(scope="module")
def scene() -> Image.Image:
    """384 x 384: a red circle at the top left, a blue square in the centre, and three more."""
    from triton_sam.cli.demo_vlm import draw_scene

    return draw_scene()


def check(found: Grounded, picture: Image.Image, *regions: Region) -> None:
    assert found.regions == regions
    assert found.masks.shape == (len(regions), picture.height, picture.width)
    for region, mask in zip(regions, found.masks, strict=True):
        assert mask.any()
        if region.box is not None:
            assert_mask(mask, picture, box=region.box)
        else:
            assert_mask(mask, picture, points=[region.point])


# -- the toy, which says places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_the_toy_and_a_segmenter(door: str, vlm_server: RunningServer, scene: Image.Image) -> None:
    with TritonVLMClient(vlm_server.urls[door]) as client:
        found = client.ground("shapes", scene, "where is the red circle?")
        assert found.text == "The red circle is at the top left."
        check(found, scene, Region("red circle", point=(64.0, 64.0)))
        found = client.ground("shapes", scene, "where is the red circle?", task="detect")
        check(found, scene, Region("red circle", box=(0.0, 0.0, 128.0, 128.0)))
        found = client.ground("vlm:shapes", png(scene), "blue square", task="point", segmenter="sam2")
        check(found, scene, Region("blue square", point=(192.0, 192.0)))
        assert found.image_key
        found = client.ground("shapes", scene, "What colour is the star?")
        assert (found.text, found.regions, found.image_key) == ("The star is yellow.", (), None)


def test_the_middle_of_a_wide_image(vlm_server: RunningServer, scene: Image.Image) -> None:
    """The toy sees the square in the middle, so that is where its cells are."""
    wide = Image.new("RGB", (700, 384), scene.getpixel((0, 0)))  # type: ignore[arg-type]
    wide.paste(scene, (158, 0))
    with TritonVLMClient(vlm_server.urls["service"]) as client:
        found = client.ground("shapes", wide, "Describe this image.", max_regions=2)
    assert found.found == 5
    check(
        found,
        wide,
        Region("red circle", point=(222.0, 64.0)),
        Region("yellow star", point=(478.0, 64.0)),
    )


@pytest.mark.parametrize("door", DOORS)
def test_refusals(door: str, vlm_server: RunningServer, scene: Image.Image) -> None:
    with TritonVLMClient(vlm_server.urls[door]) as client:
        with pytest.raises(Unsupported, match="llava answers in words and gives no places"):
            client.ground("llava", scene, "where is the red circle?")
        with pytest.raises(NotFound, match="flamingo"):
            client.ground("flamingo", scene, "where is the red circle?")
        with pytest.raises(NotFound, match="sam9"):
            client.ground("shapes", scene, "where is the red circle?", segmenter="sam9")
        with pytest.raises(InvalidInput, match="image"):
            client.ground("shapes", b"no image", "where is the red circle?")


def test_the_route_and_the_command(
    vlm_server: RunningServer, scene: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from triton_sam.cli import app

    asked = {"image": data_url(png(scene)), "object": "blue square", "model": "shapes", "format": "rle"}
    answer = httpx.post(f"{vlm_server.urls['service']}/v1/ground", json=asked, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    (region,) = document["regions"]
    assert (region["label"], region["box"]) == ("blue square", [128.0, 128.0, 256.0, 256.0])
    assert_mask(decode(region["mask"]), scene, box=region["box"])

    scene.save(tmp_path / "scene.png")
    monkeypatch.chdir(tmp_path)
    words = ["ask", "scene.png", "where is the blue square?", "--model", "shapes", "--segment"]
    words += ["--out", "found.json", "--out", "mask.png", "--out", "seen.png", "--url", vlm_server.urls["HTTP"]]
    done = CliRunner().invoke(app.app, words)
    assert done.exit_code == 0, done.output
    assert "The blue square is in the centre." in done.output
    assert "blue square: point 192, 192, score" in done.output
    assert json.loads((tmp_path / "found.json").read_text())["regions"][0]["point"] == [192.0, 192.0]
    with Image.open(tmp_path / "mask.png") as mask, Image.open(tmp_path / "seen.png") as seen:
        assert_mask(np.asarray(mask) > 0, scene, points=[(192.0, 192.0)])
        assert seen.size == scene.size


# -- moondream2's and Kosmos-2's interfaces ------------------------------------------------------------------------


def painted(width: int, height: int, **boxes: tuple[int, int, int, int]) -> Image.Image:
    """Colour -> x0, y0, x1, y1 of a rectangle."""
    image = Image.new("RGB", (width, height), (250, 250, 250))
    for colour, box in boxes.items():
        image.paste({"red": "#f00", "green": "#0f0", "blue": "#00f"}[colour], box)
    return image


@pytest.mark.part("vlm")
@pytest.mark.parametrize("door", DOORS)
def test_boxes_and_points_of_own_code(door: str, vlm_server: RunningServer) -> None:
    """The small moondream2 finds colours in 56 x 56 pixels, which these rectangles fill."""
    image = painted(448, 224, red=(80, 40, 240, 120), green=(400, 200, 448, 224))
    red, green = (80.0, 40.0, 240.0, 120.0), (400.0, 200.0, 448.0, 224.0)
    with TritonVLMClient(vlm_server.urls[door]) as client:
        found = client.ground("moondream2", image, "where are the red and green?")
        check(found, image, Region("red and green", box=red), Region("red and green", box=green))
        found = client.ground("moondream2", image, "red", task="point")
        check(found, image, Region("red", point=(160.0, 80.0)))
        assert client.ground("moondream2", image, "blue", task="detect").regions == ()


def lying(upright: Image.Image, orientation: int) -> bytes:
    """A JPEG file that a viewer turns, so that it looks like ``upright``."""
    stored = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    upright.transpose(stored).save(buffer, "JPEG", quality=95, subsampling=0, exif=exif)
    return buffer.getvalue()


@pytest.mark.part("vlm")
@pytest.mark.parametrize(("door", "orientation"), [("HTTP", 3), ("gRPC", 6), ("service", 7)])
def test_a_photograph_that_lies_on_its_side(door: str, orientation: int, vlm_server: RunningServer) -> None:
    """Both models turn it upright, and what comes back are pixels as a person sees them."""
    upright = painted(224, 448, red=(40, 80, 120, 240))
    with TritonVLMClient(vlm_server.urls[door]) as client:
        photograph = lying(upright, orientation)
        found = client.ground("moondream2", photograph, "red", task="detect")
        check(found, upright, Region("red", box=(40.0, 80.0, 120.0, 240.0)))
        found = client.ground("moondream2", photograph, "red", task="point")
        check(found, upright, Region("red", point=(80.0, 160.0)))


@pytest.fixture(scope="module")
def kosmos2_server(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A Kosmos-2 with random weights whose words are forced, and the analytic segmenter."""
    from tests.vlm_checkpoints import FORCED, make_kosmos2

    folder = tmp_path_factory.mktemp("forced_server")
    checkpoint = make_kosmos2(tmp_path_factory.mktemp("forced"), forced=FORCED)
    repository = write_analytic(folder / "model_repository", tmp_path_factory.mktemp("graphs"))
    segmenters = {"sam2": analytic_spec()}
    with serving_vlms(folder, {"vlm:kosmos2": checkpoint}, repository=repository, segmenters=segmenters) as running:
        yield running


@pytest.mark.part("vlm")
@pytest.mark.parametrize("door", DOORS)
def test_phrases_with_boxes(door: str, kosmos2_server: RunningServer) -> None:
    """Corners are patches of 32 x 32: 44 and 863, 5 and 911; then 0 and 231, 528 and 1023."""
    image = painted(640, 256, red=(0, 0, 300, 200))
    with TritonVLMClient(kosmos2_server.urls[door]) as client:
        found = client.ground("kosmos2", image, "Where is the ball?")
        assert found.text == "a red ball by a dog."
        check(
            found,
            image,
            Region("a red ball", box=(250.0, 12.0, 630.0, 212.0)),
            Region("a dog", box=(110.0, 4.0, 310.0, 228.0)),
        )
        found = client.ground("kosmos2", image, "the cup", task="detect")
        check(
            found,
            image,
            Region("the cup", box=(10.0, 4.0, 150.0, 60.0)),
            Region("the cup", box=(330.0, 132.0, 630.0, 252.0)),
        )
        with pytest.raises(Unsupported, match="kosmos2 does not do the task point: choose detect and ground"):
            client.ground("kosmos2", image, "the cup", task="point")


@pytest.mark.part("vlm")
@pytest.mark.parametrize(("door", "orientation"), [("HTTP", 3), ("gRPC", 6), ("service", 7)])
def test_phrases_in_a_tall_photograph_that_lies_on_its_side(
    door: str, orientation: int, kosmos2_server: RunningServer
) -> None:
    """The patches are those of the image as a person sees it, 320 wide and 960 tall."""
    upright = painted(320, 960, red=(0, 0, 200, 700))
    with TritonVLMClient(kosmos2_server.urls[door]) as client:
        found = client.ground("kosmos2", lying(upright, orientation), "Where is the ball?")
    check(
        found,
        upright,
        Region("a red ball", box=(125.0, 45.0, 315.0, 795.0)),
        Region("a dog", box=(55.0, 15.0, 155.0, 855.0)),
    )


# -- the toy with a real segmenter ---------------------------------------------------------------------------------


@pytest.mark.part("vlm")
def test_the_toy_with_published_weights(
    real_repository: Path, real_spec: Any, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A place is a ninth of the image: the mask of its middle is nevertheless the shape there."""
    import random

    from training.shapes.scenes import draw, make_scene

    folder = tmp_path_factory.mktemp("toys")
    rng = random.Random(27)
    scenes = [make_scene(rng) for _ in range(12)]
    ious: list[float] = []
    with (
        serving_vlms(
            folder, {"vlm:shapes": None}, repository=real_repository, segmenters={"sam2": real_spec}
        ) as running,
        TritonVLMClient(running.urls["HTTP"]) as client,
    ):
        for scene in scenes:
            picture = draw(scene, 384)
            found = client.ground("shapes", picture, "Describe this image.")
            masks = {region.label: mask for region, mask in zip(found.regions, found.masks, strict=True)}
            names = [thing.name for thing in scene.things]
            for thing in scene.things:
                if names.count(thing.name) > 1:
                    continue
                expected = shape_of(picture, thing.cell)
                mask = masks.get(thing.name, np.zeros_like(expected))
                ious.append(float((mask & expected).sum() / (mask | expected).sum()))
    with capsys.disabled():
        print(f" [toys: mean IoU {np.mean(ious):.3f}, {np.mean(np.array(ious) > 0.8):.1%} above 0.8]", end="")  # noqa: T201
    assert np.mean(np.array(ious) > 0.8) >= 0.9, sorted(ious)[:10]


def shape_of(picture: Image.Image, cell: int) -> np.ndarray:
    """[H,W] bool: what is not the ground in a cell of the 3 x 3 grid."""
    pixels = np.asarray(picture, np.int32)
    ground = np.median(pixels.reshape(-1, 3), axis=0)
    side = picture.width // 3
    inside = np.zeros(pixels.shape[:2], np.bool_)
    top, left = cell // 3 * side, cell % 3 * side
    inside[top : top + side, left : left + side] = True
    return inside & (np.abs(pixels - ground).max(axis=2) > 40)
