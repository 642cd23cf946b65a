"""Runs the decoder on rows, batched into fixed shapes."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.geometry import ResizePolicy
from triton_sam.engines.base import Decoded, FloatArray, Row
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.decoder import DecoderStep, RowDecoder
from triton_sam.engines.torch.fetching import DeviceMasks, Fetcher
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.slots import Point, fill_slots, row_points
from triton_sam.errors import InternalError, SetupError
from triton_sam.models.specs import ModelSpec

_ROWS = (1, 2, 4, 8, 16)
_TOKENS = DecoderStep.TOKENS
#: How many of these multiples are captured. Longer prompts run without a CUDA graph.
_CAPTURED = 2


class RowRunner:
    """One decoder on one stream, with fixed buffers."""

    MOST_ROWS: ClassVar[int] = _ROWS[-1]

    def __init__(
        self,
        spec: ModelSpec,
        decoder: RowDecoder,
        layout: Layout,
        device: torch.device,
        stream: torch.cuda.Stream | None,
        *,
        capture: bool = True,
    ) -> None:
        self._spec = spec
        self._decoder = decoder
        self._step = DecoderStep(decoder)
        self._device = device
        self._stream = stream
        self._capture = capture and stream is not None
        self._lock = threading.Lock()
        own = len(decoder.own_tokens)
        self._slots = tuple(_TOKENS * times - own for times in range(1, _CAPTURED + 1))
        #: The embedding in each row of the input buffer: another click on the same image needs no copy.
        self._loaded: list[weakref.ref[Tensor] | None] = [None] * self.MOST_ROWS
        side = spec.decoder.mask_side
        self._rows = torch.zeros(self.MOST_ROWS, layout.length, dtype=decoder.dtype, device=device)
        self._masks = torch.zeros(self.MOST_ROWS, 1, side, side, device=device)
        self._points = {count: torch.zeros(self.MOST_ROWS, count, 3, device=device) for count in self._slots}
        # Prompts and scores have fixed buffers on the host too, because graphs copy from and to fixed addresses. A run
        # ends after its copies, and the next one starts after it, so one of each is enough. They are zeroed, because
        # graphs must be captured with labels that the decoder knows.
        pinned = device.type == "cuda"
        self._sent = {count: torch.zeros(self.MOST_ROWS, count, 3, pin_memory=pinned) for count in self._slots}
        self._sent_arrays: dict[int, FloatArray] = {count: sent.numpy() for count, sent in self._sent.items()}
        self._facts = torch.zeros(self.MOST_ROWS, decoder.mask_count + 1, pin_memory=pinned)
        self._facts_array: FloatArray = self._facts.numpy()
        self._fetcher = Fetcher(device)
        #: Created once and entered only under the lock: it remembers the previous stream.
        self._on_stream = torch.cuda.stream(stream)
        self._steps: dict[tuple[int, int, bool], Steps] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    @property
    def packs(self) -> bool:
        """Whether masks may be packed by a kernel; it does not support padding."""
        return self._device.type == "cuda" and self._spec.resize is not ResizePolicy.PAD

    def use_packing_kernel(self) -> None:
        """Compiles and uses the kernel that packs masks, if it works here."""
        if self.packs:
            self._fetcher.warm_up()

    def use_compiled(self, folder: Path) -> None:
        """Replaces the step of a single click by compiled code, between two runs; SetupError if it is wrong.

        Args:
            folder: see :func:`~triton_sam.engines.torch.compiled_steps.load_compiled`.
        """
        function = load_compiled(folder, self._step, self._device)
        stream = new_stream(self._device) if self._device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            rows, points = self._step.lone_inputs(self._device)
            rows.normal_()
            (found, _, facts), (expected, _, known) = function(rows, points), self._step(rows, points)
            if not is_near((found, facts[:, :-1]), (expected, known[:, :-1])):
                raise SetupError("the compiled decoder gives other masks")
        with self._lock, torch.inference_mode():
            shape = 1, self._slots[0], False
            self._steps[shape] = self._made(*shape, function).instead_of(self._steps_for(*shape))

    def warm_up(self) -> Iterator[str]:
        """Captures every shape. Yields a description of each finished step."""
        for masked in (False, True):
            for slots in self._slots:
                for rows in _ROWS if self._capture else ():
                    self._steps_for(rows, slots, masked)
            kind = "with masks as prompts" if masked else "for points and boxes"
            yield f"decoder {kind}, up to {self.MOST_ROWS} rows"

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        """Rows of any images and prompts -> one result each, in order."""
        padded = self._decoder.has_features
        points = [row_points(row, always_padded=padded) for row in rows]
        groups: dict[tuple[int, bool], list[int]] = {}
        for index, row in enumerate(rows):
            kind = self._slots_for(len(points[index])), row.prompt.mask_input is not None
            groups.setdefault(kind, []).append(index)
        with self._lock, torch.inference_mode(), self._on_stream:
            if len(groups) == 1 and len(rows) <= self.MOST_ROWS:
                return self._run(rows, points, *next(iter(groups)))
            answers: dict[int, Decoded] = {}
            for kind, indices in groups.items():
                for start in range(0, len(indices), self.MOST_ROWS):
                    batch = indices[start : start + self.MOST_ROWS]
                    decoded = self._run([rows[i] for i in batch], [points[i] for i in batch], *kind)
                    answers.update(zip(batch, decoded, strict=True))
            return [answers[index] for index in range(len(rows))]

    def _slots_for(self, points: int) -> int:
        """The smallest number of slots that holds this many points."""
        own = _TOKENS - self._slots[0]
        return -(-(points + own) // _TOKENS) * _TOKENS - own

    def _place(self, rows: Sequence[Row]) -> None:
        """Copies the embeddings of some rows into the input buffer, unless they are there already."""
        wanted: list[Tensor] = [row.embedding.row for row in rows]  # type: ignore[attr-defined]
        moving = [
            index for index, row in enumerate(wanted) if (held := self._loaded[index]) is None or held() is not row
        ]
        if moving:
            for index in moving:  # if the copy fails, the row holds nothing valid
                self._loaded[index] = None
            targets = [self._rows[index] for index in moving]
            torch._foreach_copy_(targets, [wanted[index] for index in moving])
            for index in moving:
                self._loaded[index] = weakref.ref(wanted[index])

    def _run(self, rows: Sequence[Row], points: Sequence[Sequence[Point]], slots: int, masked: bool) -> list[Decoded]:
        count = bucket(len(rows), _ROWS)
        try:
            self._place(rows)
            if masked:
                self._masks[: len(rows)].copy_(self._sent_masks(rows), non_blocking=True)
            if slots in self._slots:
                fill_slots(self._sent_arrays[slots][:count], points)
                masks = self._steps_for(count, slots, masked).run()
            else:
                sent = self._fetcher.host(count, slots, 3)
                fill_slots(sent.numpy(), points)
                given = [self._rows[:count], sent.to(self._device), *([self._masks[:count]] if masked else [])]
                masks = self._copy_scores(self._step(*given))
            packed = self._fetcher.pixels(masks, rows)
            logits = self._fetcher.logits(masks, rows)
        finally:
            self.wait()  # pending work uses memory that is reused when this returns
        return self._answers(rows, logits, packed)

    def _answers(self, rows: Sequence[Row], logits: list[Any], packed: list[Any]) -> list[Decoded]:
        facts = self._facts_array[: len(rows)].copy()  # the next run overwrites it
        if not math.isfinite(facts.sum()):
            raise InternalError("the decoder overflows its precision: set TRITON_SAM_TORCH_DTYPE=float32 on the server")
        found = []
        for index, (row, choice) in enumerate(zip(rows, facts[:, -1].tolist(), strict=True)):
            place = int(choice)
            scores = facts[index, 1:-1] if row.multimask else facts[index, place : place + 1]
            found.append(Decoded(scores, logits[index], packed[index]))
        return found

    def _steps_for(self, rows: int, slots: int, masked: bool) -> Steps:
        key = (rows, slots, masked)
        if key not in self._steps:
            self._steps[key] = self._made(rows, slots, masked, self._step)
        return self._steps[key]

    def _made(self, rows: int, slots: int, masked: bool, function: Callable[..., Any]) -> Steps:
        placed, sent = self._points[slots][:rows], self._sent[slots][:rows]
        return Steps(
            function,
            [self._rows[:rows], placed, *([self._masks[:rows]] if masked else [])],
            self._stream if self._capture else None,
            self._pool,
            ahead=lambda: placed.copy_(sent, non_blocking=True),
            after=self._copy_scores,
        )

    def _copy_scores(self, output: tuple[Tensor, ...]) -> DeviceMasks:
        """Starts the copy of scores and choices to the host, and returns the masks on the device."""
        logits, best, facts = output
        self._facts[: len(facts)].copy_(facts, non_blocking=True)
        return DeviceMasks(best[:, None], logits[:, 1:])

    def _sent_masks(self, rows: Sequence[Row]) -> Tensor:
        clip, side = self._spec.decoder.mask_clip, self._spec.decoder.mask_side
        sent = self._fetcher.host(len(rows), 1, side, side)
        for slot, row in zip(sent.numpy(), rows, strict=True):
            assert row.prompt.mask_input is not None  # the group has them
            np.clip(row.prompt.mask_input, -clip, clip, out=slot[0])
        return sent

    def to_host(self, tensor: Tensor) -> Tensor:
        """Starts a copy on the current stream; the result is valid after the stream is synchronised."""
        return self._fetcher.to_host(tensor)

    def wait(self) -> None:
        """Waits for all work on the stream."""
        if self._stream is not None:
            self._stream.synchronize()
