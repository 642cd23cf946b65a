"""Runs the decoder on rows, batched into fixed shapes."""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
#: Runs that may be under way at a time: one is on the device, the next one is filled, another thread may begin a third.
_RUNS = 3


class _HostBuffers:
    """Prompts on their way to the device and scores on their way back, for one run at a time.

    They are zeroed, because graphs must be captured with labels that the decoder knows. Views are made once: each
    operation of torch gives Python's lock away, and other threads take it.

    Attributes:
        sent: (slots, rows) -> [rows,slots,3].
        facts: rows -> [rows,facts].
    """

    def __init__(self, rows: int, slots: Sequence[int], facts: int, *, pinned: bool) -> None:
        every = {count: torch.zeros(rows, count, 3, pin_memory=pinned) for count in slots}
        self.sent = _first_rows(every, rows)
        self.sent_arrays: dict[int, FloatArray] = {count: sent.numpy() for count, sent in every.items()}
        all_facts = torch.zeros(rows, facts, pin_memory=pinned)
        self.facts = {count: all_facts[:count] for count in _ROWS if count <= rows}
        self.facts_array: FloatArray = all_facts.numpy()


def _first_rows(tensors: Mapping[int, Tensor], rows: int) -> dict[tuple[int, int], Tensor]:
    """(key, number of rows) -> the first rows of a tensor."""
    return {(key, count): tensor[:count] for key, tensor in tensors.items() for count in _ROWS if count <= rows}


class _Output(NamedTuple):
    """What a step returns, on the device.

    Attributes:
        facts: [R,M+1]: the score of each mask, and the index of the best one.
    """

    facts: Tensor
    masks: DeviceMasks


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A run under way. It keeps the embeddings that the device reads."""

    rows: Sequence[Row]
    buffers: _HostBuffers
    logits: list[Any]
    packed: list[Any]
    columns: list[Any]
    done: torch.cuda.Event | None


class RowRunner:
    """One decoder on one stream, with fixed buffers."""

    MOST_ROWS: ClassVar[int] = _ROWS[-1]

    def __init__(
        self,
        spec: ModelSpec,
        decoder: RowDecoder,
        layout: Layout,
        fetcher: Fetcher,
        stream: torch.cuda.Stream | None,
        *,
        capture: bool = True,
    ) -> None:
        self._spec = spec
        self._decoder = decoder
        self._step = DecoderStep(decoder)
        self._device = device = fetcher.device
        self._fetcher = fetcher
        self._stream = stream
        self._capture = capture and stream is not None
        self._lock = threading.Lock()
        own = len(decoder.own_tokens)
        self._slots = tuple(_TOKENS * times - own for times in range(1, _CAPTURED + 1))
        #: The embedding in each row of the input buffer: another click on the same image needs no copy.
        self._loaded: list[weakref.ref[Tensor] | None] = [None] * self.MOST_ROWS
        side = spec.decoder.mask_side
        self._rows = torch.zeros(self.MOST_ROWS, layout.length, dtype=decoder.dtype, device=device)
        self._each_row = self._rows.unbind()
        self._masks = torch.zeros(self.MOST_ROWS, 1, side, side, device=device)
        points = {count: torch.zeros(self.MOST_ROWS, count, 3, device=device) for count in self._slots}
        self._points = _first_rows(points, self.MOST_ROWS)
        pinned, facts = device.type == "cuda", decoder.mask_count + 1
        #: Of single rows: the graph copies from and to them, in one launch with everything else.
        self._lone = _HostBuffers(1, self._slots, facts, pinned=pinned)
        self._buffers: queue.SimpleQueue[_HostBuffers] = queue.SimpleQueue()
        for _ in range(_RUNS):
            self._buffers.put(_HostBuffers(self.MOST_ROWS, self._slots, facts, pinned=pinned))
        #: Created once and entered only under the lock: it remembers the previous stream.
        self._on_stream = torch.cuda.stream(stream)
        self._steps: dict[tuple[int, int, bool], Steps] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    @property
    def packs(self) -> bool:
        """Whether masks may be packed by a kernel; it does not support padding."""
        return self._device.type == "cuda" and self._spec.resize is not ResizePolicy.PAD

    def use_packing_kernel(self) -> None:
        """Compiles and uses the kernels that pack masks, if they work here."""
        if self.packs:
            self._fetcher.warm_up()

    @property
    def worth_compiling(self) -> Sequence[int]:
        """Numbers of rows whose steps gain by compiling. On a GPU a batch of 16 takes half the time."""
        return _ROWS if self._device.type == "cuda" else _ROWS[:1]

    def use_compiled(self, count: int, folder: Path) -> None:
        """Replaces the step of ``count`` clicks by compiled code, between two runs; SetupError if it is wrong.

        Args:
            folder: see :func:`~triton_sam.engines.torch.compiled_steps.load_compiled`.
        """
        function = load_compiled(folder, self._step, self._device)
        stream = new_stream(self._device) if self._device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            rows, points = self._step.inputs(count, self._device)
            rows.normal_()
            (found, _, facts), (expected, _, known) = function(rows, points), self._step(rows, points)
            if not is_near((found, facts[:, :-1]), (expected, known[:, :-1])):
                raise SetupError(f"the compiled decoder for {count} rows gives other masks")
        with self._lock, torch.inference_mode():
            shape = count, self._slots[0], False
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
        points, groups = self._grouped(rows)
        with self._lock, torch.inference_mode(), self._on_stream:
            if len(groups) == 1 and len(rows) <= self.MOST_ROWS:
                return self._finished(self._started(rows, points, *next(iter(groups))))
            answers: dict[int, Decoded] = {}
            for kind, indices in groups.items():
                for start in range(0, len(indices), self.MOST_ROWS):
                    batch = indices[start : start + self.MOST_ROWS]
                    run = self._started([rows[i] for i in batch], [points[i] for i in batch], *kind)
                    answers.update(zip(batch, self._finished(run), strict=True))
            return [answers[index] for index in range(len(rows))]

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        """Starts :meth:`decode` and returns a function that waits for its result, which must be called.

        The next rows may be begun before that, so that the device goes from one run to the next. Rows that are no plain
        batch are decoded at once.
        """
        points, groups = self._grouped(rows)
        (slots, masked), *others = groups
        if others or masked or not 1 < len(rows) <= self.MOST_ROWS or slots not in self._slots:
            decoded = self.decode(rows)
            return lambda: decoded
        with self._lock, torch.inference_mode(), self._on_stream:
            run = self._started(rows, points, slots, masked)
        return lambda: self._finished(run)

    def _grouped(self, rows: Sequence[Row]) -> tuple[list[list[Point]], dict[tuple[int, bool], list[int]]]:
        """The points of each row; and (slots, whether masks are prompts) -> indices of rows that fit into one run."""
        padded = self._decoder.has_features
        points = [row_points(row, always_padded=padded) for row in rows]
        groups: dict[tuple[int, bool], list[int]] = {}
        for index, row in enumerate(rows):
            kind = self._slots_for(len(points[index])), row.prompt.mask_input is not None
            groups.setdefault(kind, []).append(index)
        return points, groups

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
            targets = [self._each_row[index] for index in moving]
            torch._foreach_copy_(targets, [wanted[index] for index in moving])
            for index in moving:
                self._loaded[index] = weakref.ref(wanted[index])

    def _started(self, rows: Sequence[Row], points: Sequence[Sequence[Point]], slots: int, masked: bool) -> _Run:
        """Starts a run, under the lock and on the stream. :meth:`_finished` must follow."""
        count = bucket(len(rows), _ROWS)
        buffers = self._lone if count == 1 else self._buffers.get()
        try:
            self._place(rows)
            if masked:
                self._masks[: len(rows)].copy_(self._sent_masks(rows), non_blocking=True)
            if slots in self._slots:
                fill_slots(buffers.sent_arrays[slots][:count], points)
                masks = self._run_steps(count, slots, masked, buffers)
            else:
                sent = self._fetcher.host(count, slots, 3)
                fill_slots(sent.numpy(), points)
                given = [self._rows[:count], sent.to(self._device), *([self._masks[:count]] if masked else [])]
                masks = _copied(_output(self._step(*given)), count, buffers)
            packed, columns = self._fetcher.pixels(masks, rows)
            logits = self._fetcher.logits(masks, rows)
            done = None if self._stream is None else self._stream.record_event()
        except BaseException:
            self.wait()  # pending work uses the buffers
            self._give_back(buffers)
            raise
        return _Run(rows, buffers, logits, packed, columns, done)

    def _finished(self, run: _Run) -> list[Decoded]:
        """Waits for a run and returns its results."""
        try:
            if run.done is not None:
                run.done.synchronize()
            facts = run.buffers.facts_array[: len(run.rows)].copy()  # a later run overwrites it
        finally:
            self._give_back(run.buffers)
        if not math.isfinite(facts.sum()):
            raise InternalError("the decoder overflows its precision: set TRITON_SAM_TORCH_DTYPE=float32 on the server")
        found = []
        for index, (row, choice) in enumerate(zip(run.rows, facts[:, -1].tolist(), strict=True)):
            place = int(choice)
            scores = facts[index, 1:-1] if row.multimask else facts[index, place : place + 1]
            found.append(Decoded(scores, run.logits[index], run.packed[index], run.columns[index]))
        return found

    def _give_back(self, buffers: _HostBuffers) -> None:
        if buffers is not self._lone:
            self._buffers.put(buffers)

    def _run_steps(self, rows: int, slots: int, masked: bool, buffers: _HostBuffers) -> DeviceMasks:
        steps = self._steps_for(rows, slots, masked)
        if buffers is not self._lone:
            self._points[slots, rows].copy_(buffers.sent[slots, rows], non_blocking=True)
            return _copied(steps.run(), rows, buffers)
        masks: DeviceMasks = steps.run()
        return masks

    def _steps_for(self, rows: int, slots: int, masked: bool) -> Steps:
        key = (rows, slots, masked)
        if key not in self._steps:
            self._steps[key] = self._made(rows, slots, masked, self._step)
        return self._steps[key]

    def _made(self, rows: int, slots: int, masked: bool, function: Callable[..., Any]) -> Steps:
        placed, sent = self._points[slots, rows], self._lone.sent[slots, 1]
        lone = rows == 1

        def copied(output: tuple[Tensor, ...]) -> DeviceMasks:
            return _copied(_output(output), 1, self._lone)

        return Steps(
            function,
            [self._rows[:rows], placed, *([self._masks[:rows]] if masked else [])],
            self._stream if self._capture else None,
            self._pool,
            ahead=(lambda: placed.copy_(sent, non_blocking=True)) if lone else None,
            after=copied if lone else _output,
        )

    def _sent_masks(self, rows: Sequence[Row]) -> Tensor:
        clip, side = self._spec.decoder.mask_clip, self._spec.decoder.mask_side
        sent = self._fetcher.host(len(rows), 1, side, side)
        for slot, row in zip(sent.numpy(), rows, strict=True):
            assert row.prompt.mask_input is not None  # the group has them
            np.clip(row.prompt.mask_input, -clip, clip, out=slot[0])
        return sent

    def wait(self) -> None:
        """Waits for all work on the stream."""
        if self._stream is not None:
            self._stream.synchronize()


def _output(output: tuple[Tensor, ...]) -> _Output:
    """The output of :class:`DecoderStep`, as views; a graph makes them once."""
    logits, best, facts = output
    return _Output(facts, DeviceMasks(best[:, None], logits[:, 1:]))


def _copied(output: _Output, rows: int, buffers: _HostBuffers) -> DeviceMasks:
    """Starts the copy of scores and choices to the host, and returns the masks on the device."""
    buffers.facts[rows].copy_(output.facts, non_blocking=True)
    return output.masks
