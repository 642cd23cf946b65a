"""Images that are text, and a server in memory that segments their boxes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.batch.records import Item, ItemPrompt, Work
from triton_sam.client.wire import Call, text_of, text_tensor
from triton_sam.core.image_choice import ImageChoice
from triton_sam.core.masks import encode
from triton_sam.errors import ImageExpired, InvalidInput, NotFound, ServerUnreachable

WIDTH, HEIGHT = 12, 7
BOX = ItemPrompt(box=(2.0, 1.0, 9.0, 5.0), annotation_id=7, category_id=3)
#: (call, name of its image) -> nothing, or raises.
Rule = Callable[[Call, str], object]


def image_of(name: str) -> bytes:
    return f"{WIDTH} {HEIGHT} {name}".encode()


def name_of(data: bytes) -> str:
    return data.decode().split(" ", 2)[2]


def size_of(data: bytes) -> tuple[int, int]:
    width, height, _ = data.decode().split(" ", 2)
    return int(width), int(height)


def work(index: int, *prompts: ItemPrompt, folder: Path = Path("/images")) -> Work:
    name = f"image{index:04d}"
    return Work(Item(index, name, folder / name, name), prompts or (BOX,))


def read(item: Item, choice: ImageChoice) -> bytes:
    if "unreadable" in str(item.path):
        raise InvalidInput("cannot identify the image")
    return image_of(item.name)


def box_mask(box: list[float], width: int, height: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros((height, width), np.bool_)
    x0, y0, x1, y1 = (round(value) for value in box)
    mask[y0:y1, x0:x1] = True
    return mask


class FakeServer:
    """A server in memory.

    Attributes:
        rule: called before each answer.
        hold: answers wait for it.
        is_down: nothing responds.
    """

    def __init__(self, rule: Rule | None = None, *, remembers: bool = True) -> None:
        self.calls: list[Call] = []
        self.names: Counter[str] = Counter()
        self.images: dict[str, bytes] = {}
        self.rule = rule
        self.hold: threading.Event | None = None
        self.arrived = threading.Semaphore(0)
        self.is_down = False
        self.models = {"sam2": "sam2:tiny"}
        self.most_in_flight = 0
        self._in_flight = 0
        self._remembers = remembers
        self._lock = threading.Lock()

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        self.arrived.release()
        try:
            if self.hold is not None:
                self.hold.wait()
            return self._answer(call)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _answer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        with self._lock:
            self.calls.append(call)
            if self.is_down:
                raise ServerUnreachable("no server responds")
            if "image" in call.inputs:
                data = call.inputs["image"].tobytes()
                key = f"key of {name_of(data)}"
                self.images[key] = data
            else:
                key = text_of(call.inputs, "image_key")
                if key not in self.images or not self._remembers:
                    raise ImageExpired(f"{key} has expired")
                data = self.images[key]
            self.names[name_of(data)] += 1
        if self.rule is not None:
            self.rule(call, name_of(data))
        width, height = size_of(data)
        prompt = json.loads(text_of(call.inputs, "prompt_json"))
        if "everything" in prompt:
            masks = [_everything_record(width, height)]
        else:
            masks = [_mask(entry, index, width, height) for index, entry in enumerate(prompt["objects"])]
        result = {
            "image_key": key,
            "model": self.models.get(call.model),
            "width": width,
            "height": height,
            "timings_ms": {"queue_encode": 1.0, "encode": 1.0, "queue": 0.5},
            "masks": masks,
        }
        return {"result_json": text_tensor(json.dumps(result))}

    def is_ready(self, model: str) -> bool:
        return not self.is_down and model in self.models

    def parameters(self, model: str) -> Mapping[str, str]:
        if self.is_down:
            raise ServerUnreachable("no server responds")
        if model not in self.models:
            raise NotFound(f"there is no {model}")
        return {"model_id": self.models[model]}

    def served(self) -> list[str]:
        return list(self.models)

    def close(self) -> None:
        pass


def _mask(entry: dict[str, Any], index: int, width: int, height: int) -> dict[str, Any]:
    box = entry.get("box") or [0, 0, *entry["points"][0]]
    if box[0] < 0 or box[2] > width or box[1] < 0 or box[3] > height:
        raise InvalidInput(f"the box of object {index} reaches outside the image")
    return {**encode(box_mask(box, width, height), "rle"), "score": 0.5 + index / 1000, "object": index}


def _everything_record(width: int, height: int) -> dict[str, Any]:
    mask = box_mask([1, 1, 4, 6], width, height)
    return {
        "id": 0,
        "segmentation": encode(mask, "rle")["data"],
        "area": 15,
        "bbox": [1, 1, 2, 4],
        "crop_box": [0, 0, width, height],
        "predicted_iou": 0.9,
        "point_coords": [[2.0, 2.0]],
        "stability_score": 0.95,
    }


def memory_transport(url: str | None) -> FakeServer:
    """A server of its own for each process, for workers of Dask."""
    return FakeServer()
