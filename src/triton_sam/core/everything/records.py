"""The answer: a record for each mask, with the names of Meta's generators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.labels import encoded_labels
from triton_sam.core.masks import encode
from triton_sam.core.rle import from_rle

Record = dict[str, Any]


def rle_record(found: Candidates, index: int) -> Record:
    """``area``, ``bbox`` (x, y, width, height), ``predicted_iou``, ``point_coords`` ([[x, y]]), ``stability_score``,
    ``crop_box`` (x, y, width, height), all in original pixels, and ``segmentation``, COCO's RLE.
    """
    return {
        "area": int(found.areas[index]),
        "bbox": _sized(found.boxes[index].tolist()),
        "predicted_iou": float(found.predicted_ious[index]),
        "point_coords": [found.points[index].tolist()],
        "stability_score": float(found.stability_scores[index]),
        "crop_box": _sized(found.crops[index].tolist()),
        "segmentation": found.masks[index].rle(),
    }


def formatted(records: Sequence[Record], form: str) -> list[Record]:
    """Records of :func:`rle_record` with another form of ``segmentation``: png (base64) or polygon."""
    if form == "rle":
        return list(records)
    return [record | {"segmentation": encode(from_rle(record["segmentation"]), form)["data"]} for record in records]


def answer_of(found: Candidates, form: str, width: int, height: int) -> dict[str, Any]:
    """``{"masks": [record, ...]}`` in the order of the candidates, each with its number ``id``.

    In the form ``labels`` a record has ``label`` instead of ``segmentation``: the number of its pixels in ``labels``,
    base64 of a PNG, which stands beside ``masks``.
    """
    records: list[Record] = [{"id": index} | rle_record(found, index) for index in range(len(found))]
    if form != "labels":
        return {"masks": formatted(records, form)}
    image = encoded_labels([record["segmentation"] for record in records], width, height)["data"]
    for number, record in enumerate(records, 1):
        del record["segmentation"]
        record["label"] = number
    return {"masks": records, "labels": image}


def _sized(box: list[int]) -> list[int]:
    x0, y0, x1, y1 = box
    return [x0, y0, x1 - x0, y1 - y0]
