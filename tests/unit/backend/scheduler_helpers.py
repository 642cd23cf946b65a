"""A scheduler's surroundings as fakes: an engine whose calls can be held, and replies that keep their response."""

from __future__ import annotations

import io
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.everything.driver import Progress
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt, Prompt
from triton_sam.engines.base import Capacity, Decoded, Embedding, HostEmbedding, Row
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.models.specs import ModelSpec

PATIENCE = 10.0
MakeScheduler = Callable[..., Scheduler]
FRAME = Frame(8, 8, 8, ResizePolicy.SQUASH)


class GatedEngine:
    """Counts its calls. A closed gate holds them; an event reports that one has arrived."""

    spec: ModelSpec

    def __init__(self) -> None:
        self.capacity = Capacity()
        self.encode_gate, self.decode_gate = threading.Event(), threading.Event()
        self.encode_gate.set()
        self.decode_gate.set()
        self.encode_arrived, self.decode_arrived = threading.Event(), threading.Event()
        self.begin_gate, self.begin_arrived = threading.Event(), threading.Event()
        self.begin_gate.set()
        self.begun: list[int] = []
        self.encodes = 0
        self.batches: list[int] = []
        self.encode_batches: list[int] = []
        self.failure: Exception | None = None

    def prepare(self, image: EncodedImage) -> Image.Image:
        return image.pixels()

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        self.encodes += len(prepared)
        self.encode_batches.append(len(prepared))
        self.encode_arrived.set()
        assert self.encode_gate.wait(PATIENCE)
        if self.failure:
            raise self.failure
        return [embedding() for _ in prepared]

    def adopt(self, frame: Frame, tensors: Mapping[str, npt.NDArray[np.float32]]) -> Embedding:
        return HostEmbedding(frame, tensors)

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        self.decode_arrived.set()
        assert self.decode_gate.wait(PATIENCE)
        self.batches.append(len(rows))
        if self.failure:
            raise self.failure
        # The result carries the prompt, so that a test sees whether results were mixed up.
        return [Decoded(np.ones(1, np.float32), np.full((1, 2, 2), row.prompt.points[0, 0])) for row in rows]

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        self.begun.append(len(rows))
        self.begin_arrived.set()
        assert self.begin_gate.wait(PATIENCE)
        return lambda: self.decode(rows)


class Inbox:
    """A reply that keeps the response for the test."""

    def __init__(self, *, gone: bool = False, broken: bool = False) -> None:
        self._answers: queue.Queue[list[Decoded] | Progress | TritonSamError] = queue.Queue()
        self._gone = gone
        self._broken = broken

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        if self._broken:
            raise RuntimeError("cannot build the answer")
        self._answers.put(decoded)

    def found(self, job: SegmentJob, progress: Progress) -> None:
        self._answers.put(progress)

    def fail(self, error: TritonSamError) -> None:
        self._answers.put(error)

    def flush(self) -> None: ...

    def is_cancelled(self) -> bool:
        return self._gone

    def get(self) -> list[Decoded] | Progress | TritonSamError:
        return self._answers.get(timeout=PATIENCE)

    @property
    def empty(self) -> bool:
        return self._answers.empty()


class Counts(Counter[str]):
    def count(self, name: str, amount: int = 1) -> None:
        self[name] += amount

    def set(self, name: str, value: float) -> None:
        self[name] = int(value)


def embedding() -> Embedding:
    return HostEmbedding(FRAME, {"features": np.zeros(4, np.float32)})


def prompt(x: float = 1.0, objects: int = 1) -> Prompt:
    point = ObjectPrompt(np.array([[x, 2.0]], np.float32), np.ones(1, np.int32))
    return Prompt((point,) * objects)


def image(shade: int = 0) -> EncodedImage:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=10**6, max_pixels=10**6)


class Preparing(GatedEngine):
    """A GPU-like engine: batches of images and rows, a gate before ``prepare``, and a file that cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(
            image_batches=(1, 2, 4), ahead=12, preparers=3, rows=8, mixes_images=True, on_cpu=False
        )
        self.prepare_gate = threading.Event()
        self.prepare_gate.set()
        self.prepared = threading.Semaphore(0)
        self.bad: EncodedImage | None = None

    def prepare(self, image: EncodedImage) -> object:
        assert self.prepare_gate.wait(PATIENCE)
        if image is self.bad:
            raise InvalidInput("damaged")
        self.prepared.release()
        return super().prepare(image)


def click(scheduler: Scheduler, inbox: Inbox, shared: Embedding, x: float = 1.0, **fields: object) -> Inbox:
    scheduler.submit_click(SegmentJob(inbox, prompt(x), "key", embedding=shared, **fields))  # type: ignore[arg-type]
    return inbox


def expect_answer(inbox: Inbox) -> list[Decoded]:
    answer = inbox.get()
    assert isinstance(answer, list), answer
    return answer


def hold_decoder(engine: GatedEngine, scheduler: Scheduler) -> Inbox:
    """Holds the decoder with one click inside, so that later clicks have to queue."""
    engine.decode_gate.clear()
    first = click(scheduler, Inbox(), embedding())
    assert engine.decode_arrived.wait(PATIENCE)
    return first


def send(scheduler: object, number: int, **fields: object) -> Inbox:
    inbox = Inbox()
    scheduler.submit_image(SegmentJob(inbox, None, f"image {number}", **fields), image(number))  # type: ignore[attr-defined, arg-type]
    return inbox


def wait_for(engine: Preparing, count: int) -> None:
    for _ in range(count):
        assert engine.prepared.acquire(timeout=PATIENCE)
