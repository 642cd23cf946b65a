"""The data types of batch jobs: an image to segment, its prompts, its result; and who segments it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from triton_sam.core.image_choice import ImageChoice


@dataclass(frozen=True, slots=True)
class Source:
    """A file or array that the user named, or that stands in a folder that the user named.

    Attributes:
        name: relative to what the user gave, with ``/``; unique in the job.
        path: absolute.
        size, mtime_ns: to notice changes.
    """

    name: str
    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a job: a file, a page of one, or a plane of an array.

    Attributes:
        index: its number in the job, from 0 on.
        name: its source's name; ``stack.tif[3]`` for a page of several. Unique in the job.
        path: of the file or array, absolute.
        stem: the path of its output files without suffix, relative, with ``/``; unique in the job.
        page: of a file or array with several, from 0 on; None for a plain image.
        image_id: of the COCO file that it comes from.
    """

    index: int
    name: str
    path: Path
    stem: str
    page: int | None = None
    image_id: int | None = None


@dataclass(frozen=True, slots=True)
class ItemPrompt:
    """One object to segment in an image.

    Attributes:
        box: x0, y0, x1, y1 in original pixels.
        points, labels: [P] pairs xy in original pixels, and 1 or 0 for each.
        annotation_id, category_id: of the COCO file that it comes from.
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
        prompts: empty in everything mode and with words. Without any else the result has no masks.
    """

    item: Item
    prompts: Sequence[ItemPrompt] = ()


@dataclass(frozen=True, slots=True)
class WordOptions:
    """What is looked for in every image.

    Attributes:
        texts: each is a category; instances of the first have the category id 1.
        score_threshold, max_instances: None for the server's.
    """

    texts: Sequence[str]
    score_threshold: float | None = None
    max_instances: int | None = None

    @property
    def categories(self) -> list[dict[str, Any]]:
        """In COCO's form."""
        return [
            {"id": number, "name": text, "supercategory": "object"} for number, text in enumerate(self.texts, start=1)
        ]


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """How every image of a job is segmented.

    Attributes:
        model: Triton name or catalogue id.
        everything: options of everything mode; None to use prompts or words.
        words: what is looked for; None to use prompts.
        clean: fills holes and removes islands with fewer pixels; None cleans nothing.
        choice: channel and window of the images; their page is the item's.
    """

    model: str = "sam2"
    everything: Mapping[str, Any] | None = None
    clean: int | None = None
    choice: ImageChoice = field(default_factory=ImageChoice)
    words: WordOptions | None = None


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
        model: id of the model that made them.
        seconds: from sending to the answer; 0 if nothing was asked.
    """

    item: Item
    width: int
    height: int
    masks: Sequence[MaskRecord]
    model: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an image ended: a result, or the reason why there is none.

    Attributes:
        failure: one sentence; the job goes on with other images.
    """

    work: Work
    result: ItemResult | None = None
    failure: str = ""


class Executor(Protocol):
    """Segments images: threads of this process, or workers elsewhere. Used by one thread."""

    def room(self) -> int:
        """How many more images it takes now."""

    def submit(self, work: Work) -> None:
        """Takes an image; call it only if there is room."""

    def finished(self, timeout: float) -> Sequence[Outcome]:
        """Images that have ended; waits up to ``timeout`` seconds for the first. Each is given once.

        Raises:
            JobStopped: the job cannot go on now: no server responds for too long, a token is wrong, the input is gone.
        """

    def describe(self) -> str:
        """A few words for the progress bar: ``12 in flight on 2 servers``."""

    def close(self, *, at_once: bool) -> None:
        """Ends it; ``at_once`` drops what is in flight, else it is finished, and :meth:`finished` still gives it."""


class PromptSource(Protocol):
    """Prompts from a file, read in a stream."""

    @property
    def categories(self) -> Sequence[Mapping[str, Any]]:
        """COCO's, in its form; known after :meth:`images` has been read."""

    def images(self) -> Iterator[PromptImage]:
        """The images that it names."""

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        """(key of an image, prompt); prompts of an image need not stand together."""


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image as a file of prompts names it.

    Attributes:
        key: unique in the file of prompts.
        name: path as the file has it, with ``/``.
        image_id: of COCO.
    """

    key: str
    name: str
    image_id: int | None = None
