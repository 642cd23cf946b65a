"""Boxes of a COCO file to masks in a folder of Parquet files, on Ray Data: docs/guides/batch_clusters.md.

    python ray_job.py photos boxes.json masks-parquet http://localhost:8080

A run that was stopped begins anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray

from triton_sam import SAM2TritonClient
from triton_sam.errors import InvalidInput

#: Each has one request in flight: a few for each GPU.
ACTORS = 2


def boxes_of(path: str) -> dict[str, list[list[float]]]:
    """File name -> boxes x0, y0, x1, y1."""
    document = json.loads(Path(path).read_text())
    names = {image["id"]: image["file_name"].rpartition("/")[2] for image in document["images"]}
    boxes: dict[str, list[list[float]]] = {}
    for found in document["annotations"]:
        x, y, width, height = found["bbox"]
        boxes.setdefault(names[found["image_id"]], []).append([x, y, x + width, y + height])
    return boxes


class Segmenter:
    """An actor with its own connection; people's requests go first."""

    def __init__(self, url: str, boxes: dict[str, list[list[float]]]) -> None:
        self.client = SAM2TritonClient(url, background=True, timeout=600)
        self.boxes = boxes

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        path, boxes = row["path"], self.boxes.get(row["path"].rpartition("/")[2])
        if not boxes:
            return []
        try:
            self.client.set_image(row["bytes"])
            masks = self.client.segment(objects=[{"box": box} for box in boxes], format="rle").encoded
        except InvalidInput as error:  # a bad file does not stop the others
            return [{"path": path, "box": "", "rle": "", "score": float("nan"), "failure": str(error)}]
        return [
            {
                "path": path,
                "box": json.dumps(box),
                "rle": json.dumps(mask["data"]),
                "score": mask["score"],
                "failure": "",
            }
            for box, mask in zip(boxes, masks, strict=True)
        ]


def main(photos: str, coco: str, out: str, url: str) -> None:
    images = ray.data.read_binary_files(photos, include_paths=True)
    masks = images.flat_map(
        Segmenter,
        fn_constructor_args=[url, boxes_of(coco)],
        compute=ray.data.ActorPoolStrategy(size=ACTORS),
        num_cpus=0.5,
    )
    masks.write_parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
