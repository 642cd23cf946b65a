"""A segmentation server in memory, behind the blocking transport's interface."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Call
from triton_sam.core.masks import encode
from triton_sam.errors import ImageExpired, NotFound, TritonSamError

WIDTH, HEIGHT = 11, 5
PICTURE = b"the bytes of an image file"
Outputs = Mapping[str, npt.NDArray[Any]]


def drawn(objects: int, each: int) -> npt.NDArray[np.bool_]:
    """[objects * each, HEIGHT, WIDTH], every mask another one."""
    count = objects * each
    return np.array([[[(x + y) % (n + 2) == 0 for x in range(WIDTH)] for y in range(HEIGHT)] for n in range(count)])


class MemoryServer:
    """A server in memory: keeps keys of images, answers clicks, and raises what it is told to raise first."""

    def __init__(self, *failures: TritonSamError) -> None:
        self.calls: list[Call] = []
        self.failures = list(failures)
        self.images: dict[str, bytes] = {}
        self.closed = 0
        self.ready = True
        self.models: dict[str, str | None] = {"sam2": "sam2:tiny"}
        self.version = "1"
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def infer(self, call: Call) -> Outputs:
        with self._lock:
            self.calls.append(call)
            if self.failures:
                raise self.failures.pop(0)
        if "image" in call.inputs:
            data = call.inputs["image"].tobytes()
            key = f"key-of-{len(data)}-{data[:8].hex()}-{call.model}-{self.version}"
            self.images[key] = data
            result = {"model": self.models.get(call.model), "image_key": key}
            known = {"image_key": key.encode(), "result_json": json.dumps(result).encode()}
            return {name: np.array([known[name]], object) for name in call.outputs}
        return self._click(call)

    def _click(self, call: Call) -> Outputs:
        key = call.inputs["image_key"][0].decode()
        if key not in self.images:
            raise ImageExpired(f"{key} is gone")
        document = json.loads(call.inputs["prompt_json"][0])
        each = 3 if document["multimask"] else 1
        objects = len(document["objects"])
        masks = drawn(objects, each)
        scores = np.linspace(0.5, 0.9, objects * each, dtype=np.float32)
        logits = np.full((objects, each, 256, 256), document["objects"][0].get("points", [[0.0]])[0][0], np.float32)
        logits.setflags(write=False)  # as a view of a transport's buffer is
        entries = []
        for index, (mask, score) in enumerate(zip(masks, scores.tolist(), strict=True)):
            form = document["format"]
            shown = {"encoding": form, "width": WIDTH, "height": HEIGHT}
            if form == "logits" and "low_res_logits" not in call.outputs:  # then they travel in the JSON
                data = base64.b64encode(logits[index // each, index % each].tobytes()).decode()
                shown |= {"width": 256, "height": 256, "data": data}
            elif form not in ("bits", "logits"):
                shown = encode(mask, form)
            entries.append(shown | {"score": score, "object": index // each})
        result = {"width": WIDTH, "height": HEIGHT, "masks": entries, "timings_ms": {"decode": 1.5, "total": 2.5}}
        result["mask"] = {name: value for name, value in entries[-1].items() if name not in ("score", "object")}
        known = {
            "low_res_logits": logits,
            "scores": scores.reshape(objects, each),
            "masks": np.packbits(masks, axis=2),
            "result_json": np.array([json.dumps(result).encode()], object),
        }
        return {name: known[name] for name in call.outputs}

    def is_ready(self, model: str) -> bool:
        return self.ready and model in self.models

    def parameters(self, model: str) -> Mapping[str, str]:
        with self._lock:
            self.asked.append(model)
            if self.failures:
                raise self.failures.pop(0)
        if model not in self.models:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        model_id = self.models[model]
        return {} if model_id is None else {"model_id": model_id, "encoder": "encoder.onnx"}

    def served(self) -> list[str]:
        return list(self.models)

    def close(self) -> None:
        self.closed += 1

    @property
    def kinds(self) -> list[str]:
        return ["encode" if "image" in call.inputs else "click" for call in self.calls]

    @property
    def document(self) -> dict[str, Any]:
        """The prompt of the last click."""
        found: dict[str, Any] = json.loads(self.calls[-1].inputs["prompt_json"][0])
        return found


class Forgetful(dict[str, bytes]):
    """A cache that is too small for a single image."""

    def __setitem__(self, key: str, value: bytes) -> None:
        pass
