"""What the page's modules read, against the libraries that people write such files with."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin
from pycocotools import mask as coco_mask

from tests.unit.node import run_node

WEB_TESTS = Path(__file__).resolve().parents[1] / "web"


def read_by_modules(node: str, *, polygons: list[dict[str, Any]] | None = None, pngs: list[bytes] | None = None) -> Any:
    given = {"polygons": polygons or [], "pngs": [base64.b64encode(png).decode("ascii") for png in pngs or []]}
    return json.loads(run_node(node, WEB_TESTS / "imports.mjs", given=json.dumps(given)))


def random_segmentation(random: np.random.Generator) -> dict[str, Any]:
    """One to three polygons, also with repeated points, along pixels, on halves, and out of the image."""
    width, height = random.integers(1, 60, 2).tolist()
    polygons = []
    for _ in range(random.integers(1, 4)):
        points = random.uniform(-0.3, 1.3, (random.integers(3, 12), 2)) * (width, height)
        kind = random.integers(4)
        if kind == 1:
            points = points.round()
        elif kind == 2:
            points = points.round() + 0.5
        elif kind == 3:
            points = np.repeat(points.round(2), 2, axis=0)
        polygons.append(points.ravel().tolist())
    return {"segmentation": polygons, "width": width, "height": height}


def test_polygons_become_the_pixels_of_pycocotools(node: str) -> None:
    random = np.random.default_rng(20)
    cases = [random_segmentation(random) for _ in range(600)]
    found = read_by_modules(node, polygons=cases)["masks"]
    differing = []
    for case, text in zip(cases, found, strict=True):
        parts = coco_mask.frPyObjects(case["segmentation"], case["height"], case["width"])
        expected = coco_mask.decode(coco_mask.merge(parts))
        differing.append(int((coco_mask.decode(text) != expected).sum()))
    # A border that passes exactly through the middle between two steps is rounded by the last bit of a product, and
    # compilers for ARM fuse it with the sum: there a pixel in some hundred polygons is another than on x86.
    assert max(differing) <= 1
    assert sum(differing) <= 5


def test_pngs_have_the_values_that_pillow_wrote(node: str) -> None:
    random = np.random.default_rng(21)
    images = [image for side in (1, 7, 64) for image in images_of(random, (side + 3, side))]
    found = read_by_modules(node, pngs=[png_of(image) for image in images])["pngs"]
    for image, values in zip(images, found, strict=True):
        expected: npt.NDArray[Any] = np.asarray(image)
        if image.mode == "LA":
            expected = expected[..., 0]
        assert (values["width"], values["height"]) == image.size
        np.testing.assert_array_equal(values["values"], expected.astype(int).ravel(), err_msg=image.mode)


def images_of(random: np.random.Generator, shape: tuple[int, int]) -> list[Image.Image]:
    """Every kind with one value a pixel: smooth ones too, for which a writer chooses other filters."""
    grey = random.integers(0, 256, shape, dtype=np.uint8)
    smooth = np.add.outer(np.arange(shape[0]) * 3, np.arange(shape[1]) * 5)
    few = Image.fromarray(grey % 3, "L").convert("P", palette=Image.Palette.ADAPTIVE, colors=3)
    palette = Image.fromarray(grey, "P")
    palette.putpalette(random.integers(0, 256, 768, dtype=np.uint8).tolist())
    return [
        Image.fromarray(grey, "L"),
        Image.fromarray(smooth.astype(np.uint8), "L"),
        Image.fromarray(random.integers(0, 65536, shape, dtype=np.uint16)),
        Image.fromarray((smooth * 97).astype(np.uint16)),
        Image.fromarray(np.stack([grey, grey[::-1]], axis=-1), "LA"),
        Image.fromarray(grey > 99),
        palette,
        few,
    ]


def png_of(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def test_pngs_that_are_no_label_images_are_refused(node: str) -> None:
    grey = Image.fromarray(np.arange(400, dtype=np.uint8).reshape(20, 20), "L")
    found = read_by_modules(node, pngs=[png_of(grey.convert("RGB")), png_of(grey)[:-40], b"GIF89a"])["pngs"]
    errors = [one["error"] for one in found]
    assert "has colours" in errors[0]
    assert "not a PNG" in errors[2]
    assert errors[1]


def test_pillow_reads_what_the_labels_mean(node: str) -> None:
    script = """
      import { labelImage } from "./src/triton_sam/service/static/js/export/label_image.js";
      const mask = { width: 2, height: 1, runs: Uint32Array.of(0, 1, 1) };
      const image = await labelImage({ width: 2, height: 1 }, [{ mask, label: 3, name: "Zelle ä", className: "cell" }]);
      process.stdout.write(Buffer.from(await image.arrayBuffer()).toString("base64"));
    """
    script = script.replace("./src", (WEB_TESTS.parents[1] / "src").as_uri())
    png = base64.b64decode(run_node(node, "--input-type=module", "-e", script))
    with Image.open(io.BytesIO(png)) as image:
        assert isinstance(image, PngImagePlugin.PngImageFile)
        assert json.loads(image.text["labels"]) == {"3": {"name": "Zelle ä", "class": "cell"}}
        np.testing.assert_array_equal(np.asarray(image), [[3, 0]])
