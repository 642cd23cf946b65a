"""The interface of engines and its data types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.grids import Points
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.readiness import Readiness
from triton_sam.models.specs import ModelSpec

#: :attr:`Engine.encoder_numbers` of an encoder whose large matrix products are in 8 bits.
EIGHT_BIT = "8-bit"

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]


class Embedding(Protocol):
    """One encoded image, in the memory of the host or of a device."""

    @property
    def frame(self) -> Frame:
        """The image's geometry."""

    @property
    def nbytes(self) -> int:
        """Its size in the cache."""

    def array(self, name: str) -> FloatArray:
        """One of the encoder's outputs by its name, [1,C,h,w] float32 in host memory."""

    def framed(self, frame: Frame) -> Embedding:
        """The same tensors for an image of another size: images of a single colour share an embedding."""


@dataclass(frozen=True, eq=False)
class HostEmbedding:
    """The encoder's outputs as arrays, by the decoder's input names."""

    frame: Frame
    tensors: Mapping[str, FloatArray]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def array(self, name: str) -> FloatArray:
        return self.tensors[name]

    def framed(self, frame: Frame) -> HostEmbedding:
        return HostEmbedding(frame, self.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One object to decode, and the outputs that are needed.

    Attributes:
        prompt: in original pixels of the embedding's image.
        multimask: return all masks of the model instead of one.
        logits: return the low-resolution logits.
        pixels: return the full-size mask, packed by rows. An engine that cannot returns the logits instead.
        columns: return it packed by columns. An engine that cannot packs it by rows, or returns the logits.
    """

    embedding: Embedding
    prompt: ObjectPrompt
    multimask: bool = False
    logits: bool = True
    pixels: bool = False
    columns: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A decoder's output for one row.

    Attributes:
        scores: [M] float32, predicted IoU.
        logits: [M,h,w] float32, low resolution, in the model's square; None if only pixels were requested and made.
        packed: [M,H,ceil(W/8)] uint8, full-size masks in original pixels, first pixel in the highest bit; None if the
            engine leaves that to its caller.
        columns: [M,W,ceil(H/8)] uint8, the same masks by columns, first pixel in the highest bit, spare bits like the
            column's last pixel; None if they were not requested, or the engine does not pack columns.
    """

    scores: FloatArray
    logits: FloatArray | None
    packed: ByteArray | None = None
    columns: ByteArray | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Batch sizes and properties of an engine that the scheduler needs.

    Attributes:
        image_batches: batch sizes of ``encode``, ascending from 1.
        ahead: maximum number of images that are being prepared, ready or being encoded at a time.
        preparers: number of threads that may call ``prepare``.
        rows: maximum number of rows in one call of ``decode``.
        mixes_images: whether rows of several images in one call are faster than one image after the other.
        on_cpu: whether it runs on the CPU, and so competes for the cores with everything else.
        answers_at_once: whether decoding a row takes less time than waking another thread.
        overlaps: whether the next call of ``begin`` may come before the result of the last one is taken, and pays.
        finds: whether it is a :class:`FindingEngine`, and that is faster than rows.
        find_points: maximum number of points in one call of ``begin_find``.
        cache_bytes: the limit for embeddings in the engine's memory; None if the engine sets no limit.
        starts_slowly: whether importing what it needs takes seconds.
        decodes_beside: whether it is a :class:`YieldingEngine`.
        tracks: whether it is a :class:`~triton_sam.engines.tracking.TrackingEngine`.
        video_bytes: the limit for memories of videos in the engine's memory; None if the engine sets no limit.
        concepts: whether it is a :class:`~triton_sam.engines.concepts.ConceptEngine`.
        concept_rows: maximum number of rows in one call of ``begin_concepts``; several are only worth it if they take
            less time than one after the other, because a request that is cancelled ends between two calls.
    """

    image_batches: tuple[int, ...] = (1,)
    ahead: int = 1
    preparers: int = 1
    rows: int = 8
    mixes_images: bool = False
    on_cpu: bool = True
    answers_at_once: bool = False
    overlaps: bool = False
    finds: bool = False
    find_points: int = 0
    cache_bytes: int | None = None
    starts_slowly: bool = False
    decodes_beside: bool = False
    tracks: bool = False
    video_bytes: int | None = None
    concepts: bool = False
    concept_rows: int = 1


class ResultMemory(Protocol):
    """Host memory into which an engine may write masks, because other processes read them there."""

    @property
    def whole(self) -> ByteArray:
        """All of it, [size] bytes, to make it known to a device."""

    def take(self, size: int) -> ByteArray | None:
        """[size] bytes of it, in use as long as an array refers to them; None if there is no room."""


class Engine(Protocol):
    """A loaded model. ``encode`` and ``decode`` may run at the same time, each on its own threads.

    Attributes:
        encoder_numbers: the encoder's precision: float32, bfloat16, float16 or 8-bit. Only float32 gives the same
            masks as the reference on every machine.
    """

    spec: ModelSpec
    capacity: Capacity
    encoder_numbers: str

    @property
    def readiness(self) -> Readiness:
        """How far it is from its full speed; it serves at every stage."""

    def prepare(self, image: EncodedImage) -> Any:
        """A file's bytes -> what ``encode`` takes; may run on several threads. InvalidInput if it cannot be decoded."""

    def encode(self, prepared: Sequence[Any]) -> list[Embedding]:
        """Prepared images, at most the largest of ``capacity.image_batches`` -> their embeddings, in order."""

    def adopt(self, frame: Frame, tensors: Mapping[str, FloatArray]) -> Embedding:
        """An embedding from arrays [1,C,h,w] float32 under the names of the encoder's outputs."""

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        """Rows of any images -> one result each, in order."""

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        """Starts ``decode`` and returns a function that gives its result and must be called."""

    def close(self) -> None:
        """Ends what it does besides serving; call it after the last request."""


class YieldingEngine(Engine, Protocol):
    """An engine that can decode at a low priority while it decodes clicks."""

    def decode_beside(self, rows: Sequence[Row]) -> list[Decoded]:
        """As ``decode``, which may run at the same time; on one thread of low priority."""


class FindingEngine(Engine, Protocol):
    """An engine that looks for everything in an image by itself: it decodes points, measures their masks and filters.

    Masks stay in its memory: see :mod:`~triton_sam.core.everything.held`.
    """

    def can_find(self, options: EverythingOptions) -> bool:
        """Whether ``begin_find`` takes these options; if not, rows do."""

    def begin_find(
        self, embedding: Embedding, points: Points, place: Place, options: EverythingOptions
    ) -> Callable[[], Candidates]:
        """Starts a chunk without waiting, and returns a function that gives the candidates found there.

        Further chunks may be begun before the result of the first is taken, and a result need not be taken. The result
        may be taken on another thread.

        Args:
            embedding: of the crop at ``place``.
            points: [P,2] xy in original pixels of the whole image, at most ``capacity.find_points``.
            options: with the model's ``pred_iou_thresh`` in place.
        """


def select(logits: FloatArray, scores: FloatArray, *, multimask: bool) -> Decoded:
    """All masks of a graph, or its best one by predicted IoU. [M,h,w] and [M]."""
    if multimask or len(scores) == 1:
        return Decoded(scores, logits)
    best = int(np.argmax(scores))
    return Decoded(scores[best : best + 1], logits[best : best + 1])
