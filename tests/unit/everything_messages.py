"""What a segmenter answers to ``everything``, by the protocol: the plain document, and the messages of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Call, Outputs, text_tensor
from triton_sam.core.everything.labels import label_image, label_png
from triton_sam.core.masks import encode
from triton_sam.core.rle import rle

WIDTH, HEIGHT = 11, 5
POINTS = 1024
#: The whole image, its left half, and two pixels of that.
MASKS = np.zeros((3, HEIGHT, WIDTH), np.bool_)
MASKS[0] = True
MASKS[1, :, :6] = True
MASKS[2, 1, 2:4] = True
#: Found, but not kept in the end.
PASSING = np.eye(HEIGHT, WIDTH, dtype=np.bool_)


def record(mask: npt.NDArray[np.bool_], number: int, form: str = "rle") -> dict[str, Any]:
    rows, columns = np.flatnonzero(mask.any(axis=1)).tolist(), np.flatnonzero(mask.any(axis=0)).tolist()
    numbers = {
        "id": number,
        "area": int(mask.sum()),
        "bbox": [columns[0], rows[0], columns[-1] - columns[0], rows[-1] - rows[0]],
        "predicted_iou": 0.9 + number / 100,
        "point_coords": [[columns[0] + 0.5, rows[0] + 0.5]],
        "stability_score": 0.96,
        "crop_box": [0, 0, WIDTH, HEIGHT],
    }
    if form == "labels":
        return numbers | {"label": number + 1}
    return numbers | {"segmentation": encode(mask, form)["data"]}


def plain(form: str = "rle", **more: Any) -> dict[str, Any]:
    """The document of the plain model."""
    document = {
        "image_key": "a" * 64,
        "model": "sam2:tiny",
        "model_version": "1",
        "encoder": "float32",
        "width": WIDTH,
        "height": HEIGHT,
        "timings_ms": {"total": 1.5},
        "of": POINTS,
        "masks": [record(mask, number, form) for number, mask in enumerate(MASKS)],
    }
    if form == "labels":
        from base64 import b64encode

        labels = label_image([rle(mask) for mask in MASKS], WIDTH, HEIGHT)
        document["labels"] = b64encode(label_png(labels)).decode()
    return document | more


def progress(done: int, masks: int, new: list[dict[str, Any]] | None = None, gone: list[int] | None = None) -> Any:
    return {"progress": {"done": done, "of": POINTS, "masks": masks}, "masks": new or [], "gone": gone or []}


def messages() -> list[dict[str, Any]]:
    """Of the stream: some masks are found, one of them is dropped again, the last message has all of them."""
    return [
        progress(0, 0),
        progress(512, 3, [record(MASKS[0], 0), record(PASSING, 7), record(MASKS[1], 1)]),
        progress(POINTS, 3, [record(MASKS[2], 2)], [7]),
        {"final": True, **plain()},
    ]


def outputs(document: Any) -> Outputs:
    return {"result_json": text_tensor(json.dumps(document)), "image_key": text_tensor("a" * 64)}


def prompt_of(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.inputs["prompt_json"][0])
    return found


def answer(call: Call) -> Outputs:
    """As the plain model."""
    return outputs(plain(prompt_of(call).get("format", "rle")) if "prompt_json" in call.inputs else plain())


def stream(call: Call) -> Iterator[Outputs]:
    """As its stream."""
    assert "everything" in prompt_of(call)
    yield from map(outputs, messages())
