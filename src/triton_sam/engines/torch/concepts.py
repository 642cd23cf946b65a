"""Looks for concepts in images: words to features, an image's pyramid, the detector, and the masks of what is found."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from triton_sam.core.concepts.selection import pixel_boxes, select, square_boxes
from triton_sam.engines.base import FloatArray
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.concept_detector import DetectStep
from triton_sam.engines.torch.concept_image import ConceptImageStep
from triton_sam.engines.torch.concept_masks import ConceptMasks
from triton_sam.engines.torch.concept_pyramids import KeptPyramids
from triton_sam.engines.torch.concept_text import TextStep
from triton_sam.engines.torch.concept_words import WordReader
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.errors import InternalError, InvalidInput, SetupError
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.concept_layers import PADDING

log = logging.getLogger(__name__)
#: Concepts of one image in one run.
COUNTS = (1, 2, 4)
#: Examples of each that are captured; with more, steps run without a graph. With the token that stands for all of them
#: they are a multiple of this, which suits the hardware.
MOST_EXAMPLES = 7
_MULTIPLE = 8
#: Images whose pyramids a GPU keeps, 56 MB each at full size: of a few people, each with one.
_KEPT_PYRAMIDS = 4


@dataclass(eq=False)
class _Run:
    """Concepts of one image under way. It keeps what the device reads.

    Attributes:
        facts: [R,5Q+1] in host memory, valid after ``done``.
        weights, pixels: see :meth:`DetectStep.forward`; on the device, valid until the next run.
        spent: tells the milliseconds for each text after ``done``.
        found: what was chosen, with masks on their way; None until then.
        error: why there is nothing.
    """

    rows: Sequence[ConceptRow]
    facts: Tensor
    weights: Tensor
    pixels: Tensor
    spent: Callable[[], list[float]]
    done: torch.cuda.Event | None
    found: list[Instances] | None = None
    ready: torch.cuda.Event | None = None
    error: Exception | None = None


@dataclass(eq=False)
class _Buffers:
    """Inputs of the detector, of a number of examples, for the most concepts."""

    words: Tensor
    mask: Tensor
    boxes: Tensor | None = None

    def first(self, count: int) -> list[Tensor]:
        """Of the first concepts."""
        return [one[:count] for one in (self.words, self.mask, self.boxes) if one is not None]


class ConceptRunner:
    """On a stream of its own: clicks go before it, by the priority of theirs."""

    MOST_ROWS: ClassVar[int] = COUNTS[-1]

    def __init__(
        self,
        spec: ModelSpec,
        network: Any,
        tokenizer: TextTokenizer,
        fetcher: Fetcher,
        dtype: torch.dtype,
        *,
        capture: bool,
    ) -> None:
        """
        Args:
            network: with ``concepts``; these layers are cast, and so belong to the steps from now on.
            dtype: of most arithmetic: see :mod:`.concept_parts`.
        """
        self._fetcher, self._device = fetcher, fetcher.device
        self.text, self.image, self.detect = make_steps(spec, network, fetcher.device, dtype)
        on_gpu = fetcher.device.type == "cuda"
        self._stream = new_stream(fetcher.device) if on_gpu else None
        self._captured = self._stream if capture else None
        self._masks = ConceptMasks(fetcher, spec.decoder.mask_side)
        #: Guards all buffers.
        self._lock = threading.Lock()
        self._reader = WordReader(self.text, tokenizer, fetcher, self._captured)
        self._tokens = len(self.text.places)
        (self._features,) = self.image.inputs(fetcher.device)
        with torch.inference_mode():
            self._pyramid = tuple(torch.zeros_like(one) for one in self.image(self._features))
        #: The features of the image in the pyramid.
        self._loaded: weakref.ref[Tensor] | None = None
        self._kept = KeptPyramids(self._pyramid, _KEPT_PYRAMIDS if on_gpu else 0)
        self._image_steps: Steps | None = None
        self._buffers = {examples: self._made_buffers(self.MOST_ROWS, examples) for examples in (0, MOST_EXAMPLES)}
        self._steps: dict[tuple[int, int], Steps] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._captured is not None else None
        self._last: weakref.ref[_Run] | None = None

    # -- loading ---------------------------------------------------------------------------------------------

    def warm_up(self) -> Iterator[str]:
        """Captures every shape. Yields a description of each finished step."""
        with torch.inference_mode():
            self._reader.warm_up()
            yield "text encoder"
            self._image_steps = self._made_image(self.image)
            for examples in (MOST_EXAMPLES, 0):  # the largest one allocates the memory that all share
                for count in reversed(COUNTS) if self._captured is not None else ():
                    self._steps[count, examples] = self._made(count, examples, self.detect)
        yield f"detector for up to {self.MOST_ROWS} concepts of an image"

    def use_compiled_text(self, count: int, folder: Path) -> None:
        """Replaces the text encoder for ``count`` texts by compiled code, between two runs; SetupError if wrong.

        Args:
            folder: see :func:`~triton_sam.engines.torch.compiled_steps.load_compiled`.
        """
        use = self._reader.compiled(count, folder)
        with self._lock, torch.inference_mode():
            use()

    def use_compiled_image(self, folder: Path) -> None:
        """Likewise for what is made of an image."""
        function = load_compiled(folder, self.image, self._device)
        with torch.inference_mode(), torch.cuda.stream(self._other_stream()):
            features = torch.randn_like(self._features)
            if not is_near(function(features), self.image(features)):
                raise SetupError("the compiled pyramid of the detector is another one")
        with self._lock, torch.inference_mode():
            made = self._made_image(function)
            self._image_steps = made if self._image_steps is None else made.instead_of(self._image_steps)
            self._loaded = None  # the capture has run it
            self._kept.forget()

    def use_compiled(self, count: int, examples: int, folder: Path) -> None:
        """Likewise for the detector of ``count`` concepts with as many examples."""
        function = load_compiled(folder, self.detect, self._device)
        with torch.inference_mode(), torch.cuda.stream(self._other_stream()):
            given = example_concepts(self.detect, self.image, count, examples, self._tokens)
            if not is_near(function(*given), self.detect(*given)):
                raise SetupError(f"the compiled detector for {count} concepts gives other instances")
        with self._lock, torch.inference_mode():
            made = self._made(count, examples, function)
            self._steps[count, examples] = made.instead_of(self._steps_for(count, examples))
            if self._stream is not None:
                torch.cuda.empty_cache()  # the comparison's memory: the embedding cache counts on it

    def _other_stream(self) -> torch.cuda.Stream | None:
        return None if self._stream is None else new_stream(self._device)

    def _made_buffers(self, count: int, examples: int) -> _Buffers:
        return _Buffers(*self.detect.inputs(count, examples, self._tokens, self._device))

    def _made_image(self, function: Callable[..., Any]) -> Steps:
        def kept(found: tuple[Tensor, ...]) -> None:
            torch._foreach_copy_(list(self._pyramid), list(found))

        return Steps(function, [self._features], self._captured, after=kept)

    def _made(self, count: int, examples: int, function: Callable[..., Any]) -> Steps:
        inputs = [*self._pyramid, *self._buffers[examples].first(count)]
        return Steps(function, inputs, self._captured, self._pool)

    def _steps_for(self, count: int, examples: int) -> Steps:
        if (count, examples) not in self._steps:
            self._steps[count, examples] = self._made(count, examples, self.detect)
        return self._steps[count, examples]

    @property
    def feature_values(self) -> int:
        """Of an image that is kept for the detector."""
        return self._features.numel()

    # -- looking ---------------------------------------------------------------------------------------------

    def check(self, text: str) -> None:
        """See :meth:`~triton_sam.engines.concepts.ConceptEngine.check_text`."""
        self._reader.check(text)

    def begin(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        """See :meth:`~triton_sam.engines.concepts.ConceptEngine.begin_concepts`. Rows of one image are one batch."""
        images: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            images.setdefault(id(_features(row)), []).append(index)
        most = self.MOST_ROWS
        batches = [
            indices[start : start + most] for indices in images.values() for start in range(0, len(indices), most)
        ]
        with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
            runs = [self._started([rows[index] for index in batch]) for batch in batches]

        def finish() -> list[Instances]:
            found: dict[int, Instances] = {}
            for batch, run in zip(batches, runs, strict=True):
                found.update(zip(batch, self._finished(run), strict=True))
            return [found[index] for index in range(len(rows))]

        return finish

    def _started(self, rows: Sequence[ConceptRow]) -> _Run:
        """Starts a run, under the lock and on the stream."""
        if self._last is not None and (last := self._last()) is not None:
            self._settle(last)  # before this run overwrites what its masks are made of
        read, spent = self._reader.read([row.prompt.words for row in rows])
        self._load(_features(rows[0]))
        count = bucket(len(rows), COUNTS)
        listed = max(len(row.prompt.boxes) for row in rows)
        examples = 0 if not listed else -(-(listed + 1) // _MULTIPLE) * _MULTIPLE - 1
        captured = examples in self._buffers
        buffers = self._buffers[examples] if captured else self._made_buffers(count, examples)
        torch._foreach_copy_(
            [*buffers.words[: len(rows)], *buffers.mask[: len(rows)]],
            [*(one.features for one in read), *(one.mask for one in read)],
        )
        if buffers.boxes is not None:
            buffers.boxes[: len(rows)].copy_(self._sent_boxes(rows, examples), non_blocking=True)
        if captured:
            facts, weights, pixels = self._steps_for(count, examples).run()
        else:
            facts, weights, pixels = self.detect(*self._pyramid, *buffers.first(count))
        sent = self._fetcher.to_host(facts[: len(rows)])
        run = _Run(rows, sent, weights, pixels, spent, self._event())
        self._last = weakref.ref(run)
        return run

    def _event(self) -> torch.cuda.Event | None:
        return None if self._stream is None else self._stream.record_event()

    def _load(self, features: Tensor) -> None:
        """Makes the pyramid of an image, unless it is there already."""
        if self._loaded is None or self._loaded() is not features:
            self._loaded = None  # if it fails, nothing valid is there
            if not self._kept.load(features):
                if self._image_steps is None:
                    self._image_steps = self._made_image(self.image)
                self._features[0].copy_(features)
                self._image_steps.run()
                self._kept.save(features)
            self._loaded = weakref.ref(features)

    def _sent_boxes(self, rows: Sequence[ConceptRow], examples: int) -> Tensor:
        sent = self._fetcher.host(len(rows), examples, 5)
        array: FloatArray = sent.numpy()
        array[:] = (0, 0, 0, 0, PADDING)
        for slots, row in zip(array, rows, strict=True):
            given = len(row.prompt.boxes)
            slots[:given, :4] = square_boxes(row.prompt.boxes, row.embedding.frame)
            slots[:given, 4] = row.prompt.labels
        return sent

    def _settle(self, run: _Run) -> None:
        """Waits for the candidates of a run, chooses, and starts their masks; what fails is told to who asked."""
        if run.found is not None or run.error is not None:
            return
        try:
            if run.done is not None:
                run.done.synchronize()
            facts: FloatArray = run.facts.numpy()
            if not math.isfinite(facts.sum()):
                raise InternalError(
                    "the detector overflows its precision: set TRITON_SAM_TORCH_DTYPE=float32 on the server"
                )
            spent = run.spent()
            run.found = [self._instances(run, index, facts[index], spent[index]) for index in range(len(run.rows))]
            run.ready = self._event()
        except Exception as error:  # of the device, of any kind
            run.error = error

    def _instances(self, run: _Run, index: int, facts: FloatArray, text_ms: float) -> Instances:
        row, queries = run.rows[index], self.detect.queries
        chosen = select(facts[:queries], float(facts[-1]), row.threshold, row.most)
        boxes = pixel_boxes(facts[queries:-1].reshape(queries, 4)[chosen.queries], row.embedding.frame)
        decoded = self._masks.decoded(row, chosen, run.weights[index], run.pixels[index])
        return Instances(chosen.presence, chosen.found, boxes, decoded, text_ms)

    def _finished(self, run: _Run) -> list[Instances]:
        """Waits for a run and returns its results."""
        if run.found is None and run.error is None:
            with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
                self._settle(run)
        if run.error is not None:
            raise run.error
        assert run.found is not None
        if run.ready is not None:
            run.ready.synchronize()
        return run.found


def make_steps(
    spec: ModelSpec, network: Any, device: torch.device, dtype: torch.dtype
) -> tuple[TextStep, ConceptImageStep, DetectStep]:
    """The steps of a network with ``concepts``, whose layers they take, on a device."""
    sizes = spec.architecture.concepts
    assert sizes is not None
    concepts = network.concepts
    return (
        TextStep(concepts, sizes.text_heads).cast(device, dtype),
        ConceptImageStep(concepts, concepts.grid, sizes.heads).cast(device, dtype),
        DetectStep(concepts, concepts.grid, sizes.heads).cast(device, dtype),
    )


def example_concepts(
    detector: DetectStep, image: ConceptImageStep, count: int, examples: int, tokens: int
) -> tuple[Tensor, ...]:
    """Inputs of random numbers for the detector, on its device."""
    device = detector.positions.device
    words, mask, *boxes = detector.inputs(count, examples, tokens, device)
    words.normal_()
    mask[:, :5] = 1
    for one in boxes:
        one[:, :2] = torch.tensor([0.5, 0.5, 0.2, 0.2, 1])
    (features,) = image.inputs(device)
    with torch.inference_mode():
        return *image(features.normal_()), words, mask, *boxes


def _features(row: ConceptRow) -> Tensor:
    """[n,C] of the row's image."""
    features: Tensor | None = row.embedding.features  # type: ignore[attr-defined]
    if features is None:
        raise InvalidInput("an embedding that was sent has nothing for words: send the image or its key")
    return features
