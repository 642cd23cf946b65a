"""The data types of batch jobs: an image to segment, its prompts, its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a job: a file, a page of one, or a plane of an array.

    Attributes:
        index: its number in the job, from 0 on; ids of the output are made of it.
        name: relative to what the user gave, with ``/``; unique in the job; ``stack.tif[3]`` for a page.
        path: of the file or array, absolute.
        page: of a file or array with several, from 0 on; None for a plain image.
        size, mtime_ns: of the file when the job began, to notice changes.
    """

    index: int
    name: str
    path: Path
    page: int | None = None
    size: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class ItemPrompt:
    """One object to segment in an image.

    Attributes:
        box: x0, y0, x1, y1 in original pixels.
        points, labels: [P] pairs xy in original pixels, and 1 or 0 for each.
        annotation_id, category_id: of the COCO file it comes from.
    """

    box: tuple[float, float, float, float] | None = None
    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    annotation_id: int | None = None
    category_id: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """An image and what to do with it.

    Attributes:
        prompts: empty in everything mode.
    """

    item: Item
    prompts: Sequence[ItemPrompt] = ()


@dataclass(frozen=True, slots=True)
class MaskRecord:
    """One mask of a result, in original pixels.

    Attributes:
        segmentation: COCO's compressed RLE, ``{"size": [H, W], "counts": str}``.
        bbox: x, y, w, h.
        score: predicted IoU.
        extra: further values of everything mode, such as ``stability_score``.
    """

    segmentation: Mapping[str, Any]
    area: int
    bbox: tuple[float, float, float, float]
    score: float
    annotation_id: int | None = None
    category_id: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The masks of one image.

    Attributes:
        width, height: of the image, upright.
        model: id of the model that made them, with its version.
    """

    item: Item
    width: int
    height: int
    masks: Sequence[MaskRecord]
    model: str = ""


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """What is recorded of a result.

    Attributes:
        seconds: from sending to the answer.
    """

    masks: int
    bytes: int
    seconds: float = 0.0


class Pending(Protocol):
    """An image that is being segmented."""

    @property
    def work(self) -> Work: ...

    def result(self) -> ItemResult:
        """Its result; waits for it. Raises the item's error, or one that ends the job."""


class Executor(Protocol):
    """Segments images: threads of this process, or workers elsewhere."""

    def room(self) -> int:
        """How many more images it takes now."""

    def submit(self, work: Work) -> None:
        """Takes an image; call it only if there is room."""

    def finished(self, timeout: float) -> Sequence[Pending]:
        """Images that have ended, well or not; waits up to ``timeout`` seconds for the first."""

    def close(self, *, at_once: bool) -> None:
        """Ends it; ``at_once`` drops what is in flight."""
