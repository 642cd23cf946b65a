"""The answer: a record for each mask, with the names of Meta's generators."""

from __future__ import annotations

from typing import Any

from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.labels import encoded_labels
from triton_sam.core.masks import encode


def records(found: Candidates, form: str, width: int, height: int) -> dict[str, Any]:
    """``{"everything": [record, ...]}``, in the order of the candidates; with ``labels`` also ``{"labels": image}``.

    A record has ``area``, ``bbox`` (x, y, width, height of its box; see
    :mod:`~triton_sam.core.everything.boxes`), ``predicted_iou``, ``point_coords`` ([[x, y]]), ``stability_score``,
    ``crop_box`` (x, y, width, height) and ``mask``, as :func:`~triton_sam.core.masks.encode` writes it. In the form
    ``labels`` it has the number of its pixels in the label image instead: ``label``.
    """
    answer: dict[str, Any] = {"everything": [_numbers(found, index) for index in range(len(found))]}
    if form == "labels":
        answer["labels"] = encoded_labels([mask.rle() for mask in found.masks], width, height)
    for index, record in enumerate(answer["everything"]):
        if form == "labels":
            record["label"] = index + 1
        elif form == "rle":
            head = {"encoding": "rle", "width": width, "height": height}
            record["mask"] = head | {"data": found.masks[index].rle()}
        else:
            record["mask"] = encode(found.masks[index].pixels(), form)
    return answer


def _numbers(found: Candidates, index: int) -> dict[str, Any]:
    return {
        "area": int(found.areas[index]),
        "bbox": _sized(found.boxes[index].tolist()),
        "predicted_iou": float(found.predicted_ious[index]),
        "point_coords": [found.points[index].tolist()],
        "stability_score": float(found.stability_scores[index]),
        "crop_box": _sized(found.crops[index].tolist()),
    }


def _sized(box: list[int]) -> list[int]:
    x0, y0, x1, y1 = box
    return [x0, y0, x1 - x0, y1 - y0]
