"""A tracking engine without arithmetic, and a client's side of a session."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests.unit.backend.scheduler_helpers import FRAME, PATIENCE, GatedEngine, image
from triton_sam.backend.jobs import Needs, SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.backend.video.outcome import VideoJob, VideoOutcome
from triton_sam.core.everything.driver import Progress
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import Prompt
from triton_sam.core.video.request import WITH_IMAGE, Do, VideoRequest, video_request
from triton_sam.engines.base import Capacity, Decoded, Embedding, HostEmbedding
from triton_sam.engines.tracking import HostMemory, Tracked, TrackRow
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS

POINT: dict[str, Any] = {"points": [[4, 4]], "labels": [1]}
MEMORY_BYTES = 1000
SPEC = dataclasses.replace(get_spec("sam2.1:tiny"), memory=MEMORY_TRAITS["sam2.1"])


class TrackingFake(GatedEngine):
    """The mask of a frame is full of its shade, and its memory counts the memories that it attended to.

    A closed gate holds ``track``; each call's rows are kept as (shade, number of memories).
    """

    spec = SPEC
    track_rows = 64
    memory_bytes = MEMORY_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(image_batches=(1, 2, 4), ahead=12, preparers=2, on_cpu=False, tracks=True)
        self.track_gate, self.track_arrived = threading.Event(), threading.Event()
        self.track_gate.set()
        self.calls: list[list[tuple[int, int]]] = []
        self.bad_shade: int | None = None
        self.unreadable: int | None = None
        self.score = 0.5

    def prepare(self, image: EncodedImage) -> Image.Image:
        picture = super().prepare(image)
        if picture.getpixel((0, 0))[0] == self.unreadable:  # type: ignore[index]
            raise InvalidInput("the image is damaged")
        return picture

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        super().encode(prepared)
        shades = [picture.getpixel((0, 0))[0] for picture in prepared]  # type: ignore[index]
        sizes = [picture.size for picture in prepared]
        return [
            HostEmbedding(dataclasses.replace(FRAME, width=size[0], height=size[1]), {"shade": np.float32([shade])})
            for shade, size in zip(shades, sizes, strict=True)
        ]

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        self.track_arrived.set()
        assert self.track_gate.wait(PATIENCE)
        shades = [int(row.embedding.array("shade")[0]) for row in rows]
        memories = [0 if row.attended is None else len(row.attended.memories) for row in rows]
        self.calls.append(list(zip(shades, memories, strict=True)))
        if self.bad_shade in shades:
            raise RuntimeError("cannot track this one")
        return [self._tracked(shade, count) for shade, count in zip(shades, memories, strict=True)]

    def _tracked(self, shade: int, memories: int) -> Tracked:
        logits = np.full((1, 256, 256), shade, np.float32)
        features = np.full((4, 2, 2), memories, np.uint16)
        decoded = Decoded(np.float32([self.score]), logits)
        return Tracked(decoded, 1.0, features, np.zeros(256, np.float32))

    def memories_to_host(self, memories: Sequence[tuple[Any, Any]]) -> list[HostMemory]:
        return [HostMemory(*memory) for memory in memories]

    def memory_from_host(self, memory: HostMemory) -> tuple[Any, Any]:
        return memory

    def memory_shape(self) -> tuple[int, int, int]:
        return 4, 2, 2


Answer = tuple[VideoOutcome, list[Decoded]] | TritonSamError


class Letterbox:
    """A reply that keeps a step's answer for the test."""

    def __init__(self) -> None:
        self._answers: queue.Queue[Answer] = queue.Queue()
        self.gone = False
        self.when_refused: Callable[[], object] = lambda: None

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        assert job.video is not None
        assert job.video.outcome is not None
        self._answers.put((job.video.outcome, decoded))

    def found(self, job: SegmentJob, progress: Progress) -> None:
        raise AssertionError("a step finds no everything")

    def fail(self, error: TritonSamError) -> None:
        self.when_refused()
        self._answers.put(error)

    def flush(self) -> None: ...

    def is_cancelled(self) -> bool:
        return self.gone

    @property
    def empty(self) -> bool:
        return self._answers.empty()

    def get(self) -> Answer:
        return self._answers.get(timeout=PATIENCE)

    def outcome(self) -> VideoOutcome:
        answer = self.get()
        assert isinstance(answer, tuple), answer
        return answer[0]

    def shades(self) -> list[int]:
        """The shade of each mask."""
        answer = self.get()
        assert isinstance(answer, tuple), answer
        return [int(one.logits[0, 0, 0]) for one in answer[1] if one.logits is not None]

    def error(self) -> TritonSamError:
        answer = self.get()
        assert isinstance(answer, TritonSamError), answer
        return answer


class Film:
    """One session at a scheduler. Steps are numbered by themselves unless a number is given."""

    def __init__(self, scheduler: Scheduler, name: str = "film") -> None:
        self.scheduler = scheduler
        self.name = name
        self.next = 0

    def send(
        self,
        do: Do,
        *,
        step: int | None = None,
        shade: int | None = None,
        picture: EncodedImage | None = None,
        restore: bytes | None = None,
        **fields: Any,
    ) -> Letterbox:
        """
        Args:
            shade: of the frame, by default its number.
        """
        if step is None:
            step, self.next = self.next, self.next + 1
        document = {"session": self.name, "step": step, "do": do.value, **fields}
        request: VideoRequest = video_request({"video": document})
        if do in WITH_IMAGE and picture is None:
            picture = image(request.frame or 0 if shade is None else shade)
        box = Letterbox()
        key = "" if picture is None else f"{hash(bytes(picture.data))}"
        job = SegmentJob(box, Prompt((), format="rle"), key, self.name, needs=Needs(), background=True)
        job.video = VideoJob(request, restore)
        assert self.scheduler.video is not None
        self.scheduler.video.submit(job, picture)
        return box

    def open(self, **fields: Any) -> VideoOutcome:
        return self.send(Do.OPEN, **fields).outcome()

    def prompt(self, frame: int = 0, name: int = 1, **fields: Any) -> Letterbox:
        return self.send(Do.PROMPT, frame=frame, object=name, **(fields or POINT))

    def track(self, frame: int, **fields: Any) -> Letterbox:
        return self.send(Do.TRACK, frame=frame, **fields)


MakeFilm = Callable[..., Film]
