"""What a segmenter answers to words and examples, by the protocol: instances that are rectangles at known places."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Call, Outputs, text_tensor
from triton_sam.core.concepts.request import ConceptPrompt, concepts_from
from triton_sam.core.masks import encode

WIDTH, HEIGHT = 11, 5
#: Word -> (x0, y0, x1, y1 in pixels, score) by falling score; other words are nowhere.
WORLD: Mapping[str, list[tuple[tuple[int, int, int, int], float]]] = {
    "coin": [((0, 0, 2, 2), 0.93), ((3, 1, 5, 4), 0.75), ((6, 0, 11, 1), 0.4)],
    "spoon": [((1, 3, 10, 5), 0.625)],
    "visual": [((0, 0, 1, 1), 0.75), ((2, 2, 3, 3), 0.625)],
}
PRESENCE = {True: 0.96875, False: 0.03125}


def mask_of(box: tuple[int, int, int, int], width: int = WIDTH, height: int = HEIGHT) -> npt.NDArray[np.bool_]:
    mask = np.zeros((height, width), np.bool_)
    x0, y0, x1, y1 = box
    mask[y0:y1, x0:x1] = True
    return mask


def found_of(concept: ConceptPrompt, threshold: float) -> list[tuple[tuple[int, int, int, int], float]]:
    """Its instances; a box around what it is not takes the instances there away."""
    boxes = {
        tuple(map(int, box)) for box, label in zip(concept.boxes.tolist(), concept.labels, strict=True) if not label
    }
    return [(box, score) for box, score in WORLD.get(concept.words, []) if score > threshold and box not in boxes]


def answer(call: Call, width: int = WIDTH, height: int = HEIGHT, **more: Any) -> Outputs:
    """As a model that takes text."""
    document = prompt_of(call)
    request = concepts_from(document)
    assert request is not None
    form = document.get("format", "png")
    entries: list[dict[str, Any]] = []
    summary, masks = [], []
    for number, concept in enumerate(request.concepts):
        found = found_of(concept, request.score_threshold)
        kept = found[: request.most]
        is_there = concept.words in WORLD
        summary.append(
            {"text": concept.text, "presence": PRESENCE[is_there], "found": len(found), "returned": len(kept)}
        )
        for box, score in kept:
            mask = mask_of(box, width, height)
            shown = encode(mask, form)
            if "masks" in call.outputs:
                del shown["data"]
            masks.append(np.packbits(mask, axis=1))
            entries.append(shown | {"score": score, "box": [float(side) for side in box], "concept": number})
    result: dict[str, Any] = {
        "image_key": "a" * 64,
        "model": "sam3:shapes",
        "model_version": "1",
        "encoder": "float32",
        "width": width,
        "height": height,
        "timings_ms": {"text": 1.0, "detect": 2.0, "total": 3.5},
        "concepts": summary,
        "masks": entries,
    } | more
    if entries:
        best = max(entries, key=lambda entry: float(entry["score"]))
        result["mask"] = {name: best[name] for name in shown}
        result["score"] = best["score"]
    packed = np.stack(masks) if masks else np.zeros((0, height, -(-width // 8)), np.uint8)
    known = {
        "result_json": text_tensor(json.dumps(result)),
        "image_key": text_tensor(result["image_key"]),
        "masks": packed,
        "scores": np.array([[entry["score"]] for entry in entries], np.float32).reshape(-1, 1),
    }
    return {name: known[name] for name in call.outputs}


def asks(call: Call) -> bool:
    """Whether it is a request for words or examples."""
    return "prompt_json" in call.inputs and concepts_from(prompt_of(call)) is not None


def prompt_of(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.inputs["prompt_json"][0])
    return found


def image_field(data: bytes) -> str:
    return base64.b64encode(data).decode()
