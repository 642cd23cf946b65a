"""Batch jobs with the published weights: drawn shapes of which the masks are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from triton_sam import BatchJob
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("batch"), pytest.mark.timeout(1200)]
IMAGES, SIDE = 60, 512
LEAST_IOU = 0.95


def draw_shapes(folder: Path) -> dict[str, list[np.ndarray]]:
    """Writes pictures with three shapes each, and ``boxes.json``; the shapes' masks by name."""
    folder.mkdir()
    random = np.random.default_rng(24)
    shapes: dict[str, list[np.ndarray]] = {}
    images, annotations = [], []
    for number in range(IMAGES):
        noise = random.integers(90, 130, (SIDE // 8, SIDE // 8, 3), np.uint8)
        picture = Image.fromarray(noise).resize((SIDE, SIDE)).filter(ImageFilter.GaussianBlur(3))
        name = f"{number:02}.jpg"
        shapes[name] = []
        for place in random.choice(4, 3, replace=False).tolist():
            left, top = (place % 2) * SIDE // 2 + 30, (place // 2) * SIDE // 2 + 30
            corners = [int(value) for value in (*random.integers(0, 30, 2), *random.integers(130, 190, 2))]
            x0, y0, x1, y1 = (value + (left, top)[index % 2] for index, value in enumerate(corners))
            mask = Image.new("1", (SIDE, SIDE))
            for canvas, colour in ((picture, tuple(int(value) for value in random.choice((20, 235), 3))), (mask, 1)):
                draw = ImageDraw.Draw(canvas)
                (draw.ellipse if number % 2 else draw.rectangle)((x0, y0, x1, y1), fill=colour)
            shapes[name].append(np.asarray(mask))
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": 1}
            annotations.append(entry | {"bbox": [x0 - 3, y0 - 2, x1 - x0 + 6, y1 - y0 + 5]})
        picture.save(folder / name, quality=92)
        images.append({"id": number, "file_name": name, "width": SIDE, "height": SIDE})
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "shape"}]}
    (folder.parent / "boxes.json").write_text(json.dumps(document))
    return shapes


def test_masks_are_the_shapes(real_server: RunningServer, tmp_path: Path) -> None:
    shapes = draw_shapes(tmp_path / "in")
    out = tmp_path / "out"
    job = BatchJob(
        tmp_path / "in", out, coco=tmp_path / "boxes.json", save=["coco", "overlays"], url=real_server.urls["HTTP"]
    )
    assert job.run().done == IMAGES
    found = json.loads((out / "annotations.json").read_text())["annotations"]
    overlaps = []
    for mask in sorted(found, key=lambda mask: mask["id"]):
        known = shapes[f"{mask['image_id']:02}.jpg"].pop(0)
        seen = from_rle(mask["segmentation"])
        overlaps.append((seen & known).sum() / (seen | known).sum())
    assert not any(shapes.values())
    print(f"IoU mean {np.mean(overlaps):.3f}, smallest {np.min(overlaps):.3f}")  # noqa: T201 - the part's log has it
    assert min(overlaps) >= LEAST_IOU
