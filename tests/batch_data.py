"""Batch jobs for tests: pictures with COCO boxes, the command, and what its results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

#: Boxes of each picture.
BOXES = 3
SIDE = 96
Results = dict[str, list[tuple[Any, ...]]]


def write_pictures(folder: Path, count: int, boxes: int = BOXES, side: int = SIDE) -> Path:
    """Writes ``count`` pictures of noise, each different, and ``boxes.json`` beside their folder; returns that file."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(count)
    images, annotations = [], []
    for number in range(count):
        height, width = side - number % 17, side + number % 23
        pixels = random.integers(0, 255, (height, width, 3), np.uint8)
        name = f"part{number % 3}/image{number:05}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / name, compress_level=1)
        images.append({"id": 7 * number + 5, "file_name": name, "width": width, "height": height})
        for _ in range(boxes):
            x, y = random.uniform(0, width / 2), random.uniform(0, height / 2)
            w, h = random.uniform(8, width / 2 - 1), random.uniform(8, height / 2 - 1)
            annotations.append(
                {
                    "id": len(annotations) * 3 + 11,
                    "image_id": images[-1]["id"],
                    "category_id": 1 + len(annotations) % 2,
                    "bbox": [round(value, 2) for value in (x, y, w, h)],
                }
            )
    random.shuffle(annotations)  # type: ignore[arg-type]  # the order of a file says nothing
    document = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    path = folder.parent / "boxes.json"
    path.write_text(json.dumps(document))
    return path


def batch_command(
    *words: object, home: Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``triton-sam batch`` with these words, in a process of its own."""
    environment = os.environ | {"TRITON_SAM_HOME": str(home), "NO_COLOR": "1"} | dict(variables or {})
    return subprocess.Popen(
        [sys.executable, "-m", "triton_sam.cli", "batch", *map(str, words)],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_batch(*words: object, home: Path, seconds: float = 300.0, **more: Any) -> tuple[int, str]:
    """(exit code, output) of a job that runs to its end."""
    with batch_command(*words, home=home, **more) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, output


def results_of(folder: Path) -> Results:
    """By image: the masks of ``annotations.json``, each with everything that matters, in the order of their ids."""
    document = json.loads((folder / "annotations.json").read_text())
    names = {image["id"]: image["file_name"] for image in document["images"]}
    assert len(names) == len(document["images"]), "each image once"
    assert len({found["id"] for found in document["annotations"]}) == len(document["annotations"]), "each mask once"
    results: Results = {name: [] for name in names.values()}
    for found in sorted(document["annotations"], key=lambda found: found["id"]):
        segmentation = found["segmentation"]
        facts = (found["id"], found["category_id"], tuple(segmentation["size"]), segmentation["counts"])
        results[names[found["image_id"]]].append((*facts, found["area"], tuple(found["bbox"]), found["score"]))
    return results


def leftovers(folder: Path) -> Sequence[Path]:
    """Unfinished files in an output folder."""
    return [path for path in folder.rglob("*") if "unfinished" in path.name]
