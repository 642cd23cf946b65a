"""A small random model that remembers, exported for a server, and a client's side of a session without the client."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.client.transport import Transport, connect
from triton_sam.client.wire import Address, Call, Outputs, text_of, text_tensor
from triton_sam.core.masks import decode
from triton_sam.errors import TritonSamError
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import GRAPHS_FILE, graphs_to_json
from triton_sam.repository.setup import write_exported

MODEL_ID = "sam2.1:tiny"
SIZE = (160, 120)
POINT: dict[str, Any] = {"points": [[60, 50]], "labels": [1]}
Mask = npt.NDArray[np.bool_]


@pytest.fixture(scope="session")
def video_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the segmenter ``sam2`` of a small network with a memory."""
    # Imported here, because tests that need no torch are collected without it.
    from tests.video_models import allow_small_sides, make_video_model
    from triton_sam.export.run import write_graphs

    folder = tmp_path_factory.mktemp("video")
    with pytest.MonkeyPatch.context() as monkeypatch:
        allow_small_sides(monkeypatch)
        model = make_video_model(MODEL_ID)
        (folder / "export").mkdir()
        write_graphs(model.network, model.spec, model.spec.graphs, folder / "export")
        (folder / "export" / GRAPHS_FILE).write_text(graphs_to_json(model.spec.graphs))
    write_exported(get_spec(MODEL_ID), folder / "export", folder / "repository")
    return folder / "repository"


def frame(number: int, size: tuple[int, int] = SIZE) -> bytes:
    """A JPEG: blobs that move over a ground."""
    width, height = size
    y, x = np.mgrid[:height, :width].astype(np.float32)
    picture = np.stack([96 + 48 * np.sin(x / 17 + y / 23 + colour) for colour in range(3)], axis=-1)
    for blob in range(3):
        angle = number / 25 + 2 * blob
        across, down = width * (0.5 + 0.3 * np.sin(angle)), height * (0.5 + 0.3 * np.cos(1.3 * angle))
        near = np.exp(-((x - across) ** 2 + (y - down) ** 2) / (0.02 * width * height))
        picture[..., blob] += 140 * near
    buffer = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@dataclass(frozen=True, eq=False)
class StepAnswer:
    """One response.

    Attributes:
        video: of ``result_json``.
        masks: by object.
        state: None if it was not requested.
    """

    video: Mapping[str, Any]
    masks: Mapping[int, Mask]
    state: bytes | None


class RawFilm:
    """One session, with steps that are sent on threads. They are numbered by themselves unless a number is given."""

    def __init__(self, url: str, name: str, model: str = "sam2", threads: int = 16) -> None:
        self.name = name
        self.next = 0
        self._model = model
        self._url = url
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def __enter__(self) -> RawFilm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        do: str,
        *,
        step: int | None = None,
        image: bytes | None = None,
        restore: bytes | npt.NDArray[Any] | None = None,
        **fields: Any,
    ) -> Future[StepAnswer]:
        if step is None:
            step, self.next = self.next, self.next + 1
        document = {"video": {"session": self.name, "step": step, "do": do, **fields}, "format": "rle"}
        inputs: dict[str, npt.NDArray[Any]] = {"prompt_json": text_tensor(json.dumps(document))}
        if image is None and do in ("prompt", "track"):
            image = frame(fields["frame"])
        if image is not None:
            inputs["image"] = np.frombuffer(image, np.uint8)
        if restore is not None:
            inputs["video_state"] = restore if isinstance(restore, np.ndarray) else np.frombuffer(restore, np.uint8)
        outputs = ("result_json", "video_state") if fields.get("state") or do == "state" else ("result_json",)
        return self._pool.submit(self._infer, Call(self._model, inputs, outputs, {"session_id": self.name}))

    def do(self, do: str, **fields: Any) -> StepAnswer:
        return self.send(do, **fields).result()

    def open(self, **fields: Any) -> StepAnswer:
        return self.do("open", width=SIZE[0], height=SIZE[1], **fields)

    def prompt(self, number: int = 0, name: int = 1, **fields: Any) -> StepAnswer:
        return self.do("prompt", frame=number, object=name, **(fields or POINT))

    def track(self, number: int, **fields: Any) -> Future[StepAnswer]:
        return self.send("track", frame=number, **fields)

    def cancel(self) -> int:
        """Cancels what waits; returns how many requests that were."""
        with connected(self._url) as transport:
            parameters = {"cancel": True, "session_id": self.name}
            outputs = transport.infer(Call(self._model, {}, ("result_json",), parameters))
        return int(json.loads(text_of(outputs, "result_json"))["cancelled"])

    def _infer(self, call: Call) -> StepAnswer:
        with connected(self._url) as transport:
            return read_answer(transport.infer(call))


def read_answer(outputs: Outputs) -> StepAnswer:
    result = json.loads(text_of(outputs, "result_json"))
    masks = {entry["object"]: decode(entry) for entry in result["masks"]}
    state = outputs["video_state"].tobytes() if "video_state" in outputs else None
    return StepAnswer(result["video"], masks, state)


def refusal(answer: Callable[[], object]) -> TritonSamError:
    """The error of a request that must not be answered otherwise."""
    with pytest.raises(TritonSamError) as caught:
        answer()
    return caught.value


def same(one: StepAnswer, other: StepAnswer) -> bool:
    return one.masks.keys() == other.masks.keys() and all(
        (one.masks[name] == other.masks[name]).all() for name in one.masks
    )


def connected(url: str) -> closing[Transport]:
    return closing(connect(Address.parse(url), 60.0, {}))
