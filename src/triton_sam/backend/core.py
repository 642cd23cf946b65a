"""A segmenter's engine, cache, scheduler and sessions on one device. No Triton here.

It runs in the process of the Triton model (one process, one device), or in a worker process behind several of them
(:mod:`triton_sam.backend.workers`).
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.concept_replies import bounded
from triton_sam.backend.following import Answer
from triton_sam.backend.jobs import Metrics, QueueLimits, SegmentJob
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.scheduler import Scheduler
from triton_sam.backend.video.limits import VideoLimits
from triton_sam.core import masks
from triton_sam.core.concepts.request import ConceptRequest
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import Prompt
from triton_sam.engines.base import Embedding, ResultMemory
from triton_sam.engines.device_list import own_gpu
from triton_sam.engines.loading import load_engine
from triton_sam.errors import InternalError, InvalidInput, TritonSamError, Unsupported
from triton_sam.models.specs import ModelSpec
from triton_sam.settings import Settings

if TYPE_CHECKING:
    from triton_sam.engines.concepts import ConceptEngine

log = logging.getLogger(__name__)
_SWITCH_SECONDS = 0.0001
#: Before the name of a video session, where image keys are known by their name too.
SESSION_KEY = "video/"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where the image of a request comes from: a file, the cache (all None), or an embedding.

    Attributes:
        image: bytes of an image file.
        embedding: [1,256,64,64] float32, an embedding that the client has kept.
    """

    image: bytes | None = None
    embedding: npt.NDArray[np.float32] | None = None


class SegmenterCore(Protocol):
    """Computes the requests of one model, in this process or in others."""

    @property
    def info(self) -> ModelInfo:
        """What responses say about the model."""

    def submit(self, job: SegmentJob, source: Source) -> None:
        """Takes a request; its reply is used exactly once, unless this raises TritonSamError."""

    def cancel(self, session: str, before: int | None, only: int | None, done: Callable[[int], None]) -> None:
        """See :meth:`Scheduler.cancel_session`; calls ``done`` with the number of cancelled requests."""

    def ping(self, done: Callable[[dict[str, Any] | TritonSamError], None]) -> None:
        """Calls ``done`` from the decode worker, with an error or with:

        ``encode_seconds`` of the present encode, and ``devices``, each with its name (``device``), ``state`` (``ready``
        or ``starting``), requests ``in_flight``, and ``engine``, the readiness of its engine (None while it starts).
        """

    def follow(self, run: str, since: int, done: Answer) -> None:
        """Calls ``done`` with what a run for everything has found after version ``since``; see ``following.py``."""

    def embedding_of(self, job: SegmentJob) -> npt.NDArray[np.float32]:
        """[1,256,64,64] of an answered job's image."""

    def close(self) -> None:
        """Finishes all admitted requests."""


class LocalCore:
    """See :class:`SegmenterCore`: computes in this process."""

    def __init__(
        self,
        spec: ModelSpec,
        folder: Path,
        version: str,
        settings: Settings,
        metrics: Metrics,
        memory: ResultMemory | None = None,
    ) -> None:
        """
        Args:
            folder: of the version, with its graphs or weights.
            memory: for masks; None uses memory of this process.
        """
        # Our own limit on pixels replaces Pillow's, which remains as a second check at twice the size.
        Image.MAX_IMAGE_PIXELS = settings.max_image_pixels
        self._spec = spec
        self._settings = settings
        self._metrics = metrics
        self._engine = load_engine(spec, folder, settings, memory)
        self.info = ModelInfo(spec.id, version, self._engine.encoder_numbers)
        if self.on_cpu:
            load_resizing()
        else:
            hurry_threads()
        room = self._engine.capacity.cache_bytes
        self._cache = EmbeddingCache(settings.cache_bytes if room is None else room)
        limits = QueueLimits(
            settings.encode_queue,
            settings.click_queue,
            settings.queue_seconds,
            settings.background_queue_seconds,
            window=settings.encode_window_ms / 1e3,
            video=VideoLimits.of(settings, self._engine.capacity.video_bytes),
        )
        self._scheduler = Scheduler(self._engine, self._cache, metrics, limits)

    @property
    def on_cpu(self) -> bool:
        """Whether masks are resized on the CPU, when a response is built; on a GPU the engine does it."""
        return self._engine.capacity.on_cpu

    @property
    def takes_concepts(self) -> bool:
        """Whether it finds what words and examples name."""
        return self._engine.capacity.concepts

    @property
    def starts_slowly(self) -> bool:
        """Whether importing what the engine needs takes seconds."""
        return self._engine.capacity.starts_slowly

    @property
    def device(self) -> str:
        """``cpu``, or the number or UUID of a GPU."""
        return "cpu" if self.on_cpu else own_gpu()

    @property
    def unanswered(self) -> int:
        """Number of admitted requests without a response."""
        return self._scheduler.unanswered

    @property
    def crowded(self) -> bool:
        """Whether a click that arrives now waits for another batch than the one that is being decoded."""
        return self._scheduler.unanswered_of_people > self._engine.capacity.rows

    def submit(self, job: SegmentJob, source: Source) -> None:
        """See :class:`SegmenterCore`."""
        if job.video is not None:
            self._submit_step(job, source.image)
        elif source.image is not None:
            self._submit_image(job, source.image)
        elif job.prompt is None:
            kept = "image_key" if source.embedding is None else "an embedding"
            raise InvalidInput(f"a request with {kept} needs prompt_json: add a prompt")
        elif source.embedding is not None:
            self._submit_embedding(job, source.embedding, job.prompt)
        else:
            self._submit_cached(job, job.prompt)

    def cancel(self, session: str, before: int | None, only: int | None, done: Callable[[int], None]) -> None:
        """See :class:`SegmenterCore`."""
        done(self._scheduler.cancel_session(session, before=before, only=only))

    def ping(self, done: Callable[[dict[str, Any] | TritonSamError], None]) -> None:
        """See :class:`SegmenterCore`. Also has ``engine``, the readiness of its one engine."""

        def answer() -> None:
            if self._scheduler.alive:
                engine = self._engine.readiness.as_json()
                device = {"device": self.device, "state": "ready", "in_flight": self.unanswered, "engine": engine}
                done({"encode_seconds": self._scheduler.encode_seconds, "engine": engine, "devices": [device]})
            else:
                done(InternalError("a worker has ended"))

        self._scheduler.ping(answer)

    def follow(self, run: str, since: int, done: Answer) -> None:
        """See :class:`SegmenterCore`."""
        self._scheduler.follow(run, since, done)

    def embedding_of(self, job: SegmentJob) -> npt.NDArray[np.float32]:
        """See :class:`SegmenterCore`. Its hash is kept, so that a client can send the embedding back."""
        assert job.embedding is not None  # jobs without one have failed before
        array = job.embedding.array(self._spec.encoder.embedding)
        self._cache.add_alias(embedding_hash(array), job.image_key)
        return array

    def has(self, name: str) -> bool:
        """Whether an image is cached, by its key or by the hash of its embedding; or a video session is open."""
        if name.startswith(SESSION_KEY):
            return self._scheduler.video is not None and self._scheduler.video.has(name.removeprefix(SESSION_KEY))
        return self._cache.get(name, background=True) is not None or self._cache.find_alias(name) is not None

    def close(self) -> None:
        """See :class:`SegmenterCore`."""
        self._scheduler.close()
        self._engine.close()

    def _submit_image(self, job: SegmentJob, image: bytes) -> None:
        settings = self._settings
        encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
        if job.prompt is not None:
            self._check(job, job.prompt, *encoded.size)
            if job.prompt.everything is not None and job.prompt.everything.crop_n_layers:
                job.image = encoded
        cached = self._cache.get(job.image_key, background=job.background)
        self._metrics.count("cache_hits" if cached is not None else "cache_misses")
        self._scheduler.submit_image(job, encoded)
        self._hand_over()

    def _submit_step(self, job: SegmentJob, image: bytes | None) -> None:
        """Passes a step of a video on. One whose frame is no image has its turn too, so that those behind it wait."""
        if self._scheduler.video is None:
            raise Unsupported(f"the engine of {self._spec.id} cannot track: serve it with the ONNX engine, or on a GPU")
        encoded, failure = None, None
        try:
            if image is not None:
                settings = self._settings
                encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
        except TritonSamError as error:
            failure = error
        self._scheduler.video.submit(job, encoded, failure)

    def _submit_cached(self, job: SegmentJob, prompt: Prompt) -> None:
        try:
            embedding = self._cache.require(job.image_key, background=job.background)
        except TritonSamError:
            self._metrics.count("cache_misses")
            raise
        self._check(job, prompt, embedding.frame.width, embedding.frame.height)
        _refuse_crops(prompt)
        job.embedding = embedding
        self._scheduler.submit_click(job)
        self._metrics.count("cache_hits")
        if job.wants_concepts:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hands Python's lock to the thread that was told of a job, which would wait 0.1 ms for it."""
        if not self.on_cpu:
            time.sleep(0)

    def _submit_embedding(self, job: SegmentJob, array: npt.NDArray[np.float32], prompt: Prompt) -> None:
        if prompt.concepts is not None:
            raise InvalidInput("text and exemplars need the image or its image_key: an embedding has too little of it")
        known = self._cache.find_alias(embedding_hash(array))
        job.image_key, embedding = known if known is not None else ("", self._bare_embedding(array, prompt))
        if prompt.image_size is not None:  # images of one colour share an embedding whatever their size is
            embedding = embedding.framed(Frame(*prompt.image_size, self._spec.side, self._spec.resize))
        self._check(job, prompt, embedding.frame.width, embedding.frame.height)
        _refuse_crops(prompt)
        job.embedding = embedding
        self._scheduler.submit_click(job)

    def _check(self, job: SegmentJob, prompt: Prompt, width: int, height: int) -> None:
        """Raises InvalidInput for prompts outside the image, or for more mask pixels than allowed.

        How many instances of concepts will be found is not known: no more are returned than are allowed.
        """
        prompt.check_inside(width, height)
        if prompt.concepts is not None:
            job.prompt = self._bounded(job, prompt, prompt.concepts, (width, height))
            return
        count = len(prompt.objects) * (self._spec.decoder.masks_per_prompt if prompt.multimask else 1)
        limit = self._settings.max_answer_pixels
        if prompt.format != "logits" and count * width * height > limit:
            raise InvalidInput(
                f"{count} masks of {width} x {height} pixels are too much for one request: {limit:,} pixels in all "
                "are allowed, so send fewer objects at a time, or request logits"
            )

    def _bounded(self, job: SegmentJob, prompt: Prompt, asked: ConceptRequest, size: tuple[int, int]) -> Prompt:
        """A prompt for concepts with as many instances as may be returned."""
        if not self.takes_concepts:
            raise Unsupported(f"the engine of {self._spec.id} takes no text or exemplars: run `triton-sam setup` again")
        engine = cast("ConceptEngine", self._engine)
        limit, logits = self._settings.max_answer_pixels, self.on_cpu or job.needs.logits
        return replace(prompt, concepts=bounded(asked, engine, size, limit, logits=logits))

    def _bare_embedding(self, array: npt.NDArray[np.float32], prompt: Prompt) -> Embedding:
        """An embedding that is not in the cache: its high-resolution features are zeros."""
        if prompt.image_size is None:
            raise InvalidInput("this embedding is not known here: add image_size [width, height] to prompt_json")
        outputs = dict(self._spec.encoder.outputs)
        if array.shape != outputs[self._spec.encoder.embedding]:
            wanted = list(outputs[self._spec.encoder.embedding])
            raise InvalidInput(f"the embedding is float32 {wanted}, not {list(array.shape)}")
        if not np.isfinite(array).all():
            raise InvalidInput("the embedding has values that are not finite")
        tensors = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
        tensors[self._spec.encoder.embedding] = array
        return self._engine.adopt(Frame(*prompt.image_size, self._spec.side, self._spec.resize), tensors)


def _refuse_crops(prompt: Prompt) -> None:
    if prompt.everything is not None and prompt.everything.crop_n_layers:
        raise InvalidInput("crop_n_layers needs the pixels: send the image again instead of its key or embedding")


def hurry_threads() -> None:
    """On a GPU a click takes a millisecond: a thread must not wait 5 ms for Python's lock."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def load_resizing() -> None:
    """Imports OpenCV now instead of with the first response."""
    masks.full_size(np.zeros((2, 2), np.float32), Frame(2, 2, 2, ResizePolicy.SQUASH))


def embedding_hash(array: npt.NDArray[np.float32]) -> str:
    """The name of an embedding that a client keeps."""
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f4").tobytes()).hexdigest()
