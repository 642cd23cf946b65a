"""Runs the decoder on points of one image, and keeps the masks that are good enough, all on the device."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.filtering import Measured, candidates_of
from triton_sam.core.everything.grids import CropBox, Points
from triton_sam.core.everything.held import HeldMask
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame
from triton_sam.engines.base import Embedding, FloatArray
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.device_images import TorchEmbedding
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.graphs import Steps, new_stream
from triton_sam.engines.torch.grid_decoder import GridStep
from triton_sam.engines.torch.measure_trial import kernel_measures
from triton_sam.engines.torch.measuring import Limits, measured
from triton_sam.engines.torch.tracing import run_lengths
from triton_sam.errors import InternalError, SetupError
from triton_sam.models.specs import ModelSpec

log = logging.getLogger(__name__)
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """A chunk under way. It keeps what the device reads.

    Attributes:
        logits: [P,M,h,w] on the device; facts: [P*M,8] int32 in host memory, valid after ``done``: the numbers of
            :func:`~triton_sam.engines.torch.measuring.measured` and the bits of the score.
        points: [P,2] xy in original pixels of the whole image.
    """

    embedding: TorchEmbedding
    logits: Tensor
    facts: Tensor
    points: Points
    place: Place
    options: EverythingOptions
    done: torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class _Encoder:
    """See :class:`~triton_sam.core.everything.held.RunEncoder`. Blocks are [h,w] logits on the device."""

    runner: GridRunner
    frame: Frame
    crop: CropBox
    whole: tuple[int, int]
    threshold: float

    def run_lengths(self, blocks: Sequence[Tensor]) -> list[dict[str, Any]]:
        return self.runner.run_lengths(blocks, self)


class GridRunner:
    """One decoder for grids, on a stream of its own: clicks go before it, by the priority of theirs."""

    #: The most points of a chunk.
    MOST_POINTS = GridStep.ROWS

    def __init__(self, spec: ModelSpec, decoder: RowDecoder, device: torch.device, *, capture: bool = True) -> None:
        self._spec = spec
        self._decoder = decoder
        self._step = GridStep(decoder)
        self._device = device
        self._stream = new_stream(device) if device.type == "cuda" else None
        self._capture = capture
        #: Guards the input buffers.
        self._lock = threading.Lock()
        self._row, self._points = self._step.inputs(self.MOST_POINTS, device)
        self._loaded: weakref.ref[Tensor] | None = None
        self._steps: Steps | None = None
        self._fetcher = Fetcher(device)
        self._by_kernel = False

    def warm_up(self) -> bool:
        """Captures the step, and runs everything once. Whether the device has the memory for it."""
        try:
            self._run_once()
            return True
        except torch.cuda.OutOfMemoryError:
            self._steps = None
            torch.cuda.empty_cache()
            log.warning("%s finds everything point by point, and slower: the GPU has no memory left", self._spec.id)
            return False

    def _run_once(self) -> None:
        side = self._spec.side
        frame = Frame(side, side, side, self._spec.resize)
        row = torch.zeros_like(self._row[0]).normal_()
        embedding = TorchEmbedding(frame, row, self._decoder.layout)
        options = EverythingOptions(pred_iou_thresh=0.0, stability_score_thresh=0.0)
        place = Place((0, 0, side, side), side, side)
        self.begin(embedding, np.full((2, 2), side / 2), place, options)()
        mask_side = self._spec.decoder.mask_side
        logits = torch.linspace(-1, 1, mask_side, device=self._device, dtype=self._decoder.dtype).expand(mask_side, -1)
        self.run_lengths([logits, logits], _Encoder(self, frame, place.crop, (side, side), 0.0))

    def use_kernels(self) -> None:
        """Compiles and uses the kernels that measure masks, if they work here."""
        self._by_kernel = kernel_measures(self._device, self._decoder.dtype)

    def use_compiled(self, folder: Path) -> None:
        """Replaces the step by compiled code, between two runs; SetupError if it is wrong.

        Args:
            folder: see :func:`~triton_sam.engines.torch.compiled_steps.load_compiled`.
        """
        function = load_compiled(folder, self._step, self._device)
        stream = None if self._stream is None else new_stream(self._device)
        with torch.inference_mode(), torch.cuda.stream(stream):
            row, points = self._step.inputs(self.MOST_POINTS, self._device)
            row.normal_()
            points[:, 0, :2].uniform_(0, self._spec.side)
            (found, _, facts), (expected, _, known) = function(row, points), self._step(row, points)
            if not is_near((found, facts[:, :-1]), (expected, known[:, :-1])):
                raise SetupError("the compiled decoder for grids gives other masks")
        with self._lock, torch.inference_mode():
            self._steps = self._made(function).instead_of(self._ready())
        if stream is not None:
            torch.cuda.empty_cache()  # the comparison's memory: the embedding cache counts on it

    def begin(
        self, embedding: Embedding, points: Points, place: Place, options: EverythingOptions
    ) -> Callable[[], Candidates]:
        """See :meth:`~triton_sam.engines.base.FindingEngine.begin_find`."""
        if options.use_m2m:
            raise ValueError("masks are refined by decoding rows: see can_find")
        if options.pred_iou_thresh is None:
            raise ValueError("pred_iou_thresh is the model's: replace it before filtering")
        if not 0 < len(points) <= self.MOST_POINTS:
            raise ValueError(f"a chunk has 1 to {self.MOST_POINTS} points, not {len(points)}")
        assert isinstance(embedding, TorchEmbedding)
        # A prompt's points are float32, in pixels of the crop.
        inside = (points - place.crop[:2]).astype(np.float32)
        sent = self._fetcher.host(len(points), 2)
        sent.numpy()[:] = embedding.frame.to_model(inside)
        threshold, offset = options.mask_threshold, options.stability_score_offset
        # NaN is not above anything; at 0 predicted IoUs do not count.
        least = options.pred_iou_thresh if options.pred_iou_thresh > 0 else -math.inf
        limits = Limits(least, threshold - offset, threshold, threshold + offset)
        with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
            self._load(embedding.row)
            self._points[: len(points), 0, :2].copy_(sent, non_blocking=True)
            logits, best, scores = self._ready().run()
            if options.multimask_output:
                logits, scores = logits[: len(points), 1:], scores[: len(points), 1:-1]
            else:
                logits, scores = best[: len(points), None], scores[: len(points), -1:]
            logits = logits.clone(memory_format=torch.contiguous_format)  # the next run overwrites it
            numbers = measured(logits, scores, embedding.frame, limits, by_kernel=self._by_kernel)
            bits = scores.contiguous().view(torch.int32).view(-1, 1)
            facts = self._fetcher.to_host(torch.cat([numbers, bits], dim=1))
            done = None if self._stream is None else self._stream.record_event()
        chunk = _Chunk(embedding, logits, facts, points, place, options, done)
        return lambda: self._finished(chunk)

    def _load(self, row: Tensor) -> None:
        """Copies an embedding into the input buffer, unless it is there already."""
        if self._loaded is None or self._loaded() is not row:
            self._loaded = None  # if the copy fails, nothing valid is there
            self._row[0].copy_(row)
            self._loaded = weakref.ref(row)

    def _ready(self) -> Steps:
        if self._steps is None:
            self._steps = self._made(self._step)
        return self._steps

    def _made(self, function: Callable[..., Any]) -> Steps:
        return Steps(function, [self._row, self._points], self._stream if self._capture else None)

    def _finished(self, chunk: _Chunk) -> Candidates:
        """Waits for a chunk's numbers; masks stay on the device."""
        if chunk.done is not None:
            chunk.done.synchronize()
        facts: Numbers = chunk.facts.numpy()
        scores: FloatArray = facts[:, -1].copy().view(np.float32)
        if not math.isfinite(scores.sum()):
            raise InternalError("the decoder overflows its precision: set TRITON_SAM_TORCH_DTYPE=float32 on the server")
        low, area, high = facts[:, :3].T.astype(np.int64)
        stability = high / np.maximum(low, 1)
        # Masks with too low a score have no area.
        kept = np.flatnonzero((area > 0) & (stability >= chunk.options.stability_score_thresh))
        frame = chunk.embedding.frame
        boxes = facts[kept, 3:7] * np.array([-1, -1, 1, 1]) + np.array([frame.width, frame.height, -1, -1])
        rows = kept // chunk.logits.shape[1]
        masks = self._held(chunk, kept) if len(kept) else ()
        found = Measured(masks, rows, area[kept], boxes, scores[kept], stability[kept])
        return candidates_of(found, chunk.points, chunk.place)

    def _held(self, chunk: _Chunk, kept: npt.NDArray[np.intp]) -> tuple[HeldMask, ...]:
        """Copies the masks that are kept, so that the others can go. Does not wait."""
        place = chunk.place
        encoder = _Encoder(
            self, chunk.embedding.frame, place.crop, (place.width, place.height), chunk.options.mask_threshold
        )
        sent = self._fetcher.host(len(kept), dtype=torch.int64)
        sent.numpy()[:] = kept
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            indices = sent.to(self._device, non_blocking=True)
            blocks = chunk.logits.flatten(0, 1).index_select(0, indices)
            each = blocks[0].numel() * blocks.element_size()
            return tuple(HeldMask(encoder, block, each) for block in blocks.unbind())

    def run_lengths(self, blocks: Sequence[Tensor], of: _Encoder) -> list[dict[str, Any]]:
        """Masks of one crop, [h,w] each -> their RLE in the whole image. Waits for the device, without the lock."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            logits = torch.stack(list(blocks))
            return run_lengths(logits, of.threshold, of.frame, of.crop, of.whole, by_kernel=self._by_kernel)
