"""Tracks objects on the device: rows of any videos in batches of fixed shapes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Decoded, FloatArray, Row
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.decoder import DecoderStep, RowDecoder
from triton_sam.engines.torch.fetching import DeviceMasks, Fetcher
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.engines.torch.slots import Point, row_points
from triton_sam.engines.torch.tracking_given import GivenMasks
from triton_sam.engines.torch.tracking_inputs import TrackInputs
from triton_sam.engines.torch.tracking_step import TrackShape, TrackStep
from triton_sam.engines.torch.tracking_trial import kernel_tracks
from triton_sam.engines.tracking import HostMemory, Tracked, TrackRow
from triton_sam.errors import InternalError, SetupError
from triton_sam.models.specs import ModelSpec

log = logging.getLogger(__name__)
#: Rows of one run. Five objects are as usual as four, and all numbers beyond 1 fill a large GPU's processors well.
ROWS = (1, 2, 3, 5, 8, 12, 16)
#: Rows with prompts, or with more memories.
FEW_ROWS = (1, 4)
#: Slots for memories and pointers of tracked frames: with up to four conditioning frames.
SLOTS, POINTERS = 10, 20
#: And of other rows: with up to sixteen.
MORE_SLOTS, MORE_POINTERS = 22, 32
#: Below so much memory there are fewer rows.
_ROOMY = 12 * 2**30
#: Memories that leave the device in one copy.
_COPIED = 32
#: How often compiled code is tried with other numbers, and the share of objects that must get the same.
_TRIALS, _MOST = 3, 0.75
_NO_PROMPT = ObjectPrompt(np.zeros((0, 2), np.float32), np.zeros(0, np.int32))


class TrackRunner:
    """One step on a stream of its own, beside clicks, which have priority."""

    TRACKED: ClassVar[str] = "tracked"

    def __init__(self, spec: ModelSpec, step: TrackStep, given: GivenMasks, fetcher: Fetcher, *, capture: bool) -> None:
        """
        Args:
            step: on the fetcher's device.
        """
        assert spec.memory is not None
        self._spec, self._step, self._given, self._fetcher = spec, step, given, fetcher
        self._device = device = fetcher.device
        self._stream = new_stream(device) if device.type == "cuda" else None
        #: For memories that leave the device.
        self._copies = new_stream(device) if device.type == "cuda" else None
        self._capture = capture and self._stream is not None
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None
        roomy = device.type != "cuda" or torch.cuda.get_device_properties(device).total_memory >= _ROOMY
        self._counts = ROWS if roomy else ROWS[:4]
        own = len(step.decoder.own_tokens)
        points = 2 * DecoderStep.TOKENS - own
        self._plain = self._inputs(tracked_shape(self._counts[-1]))
        self._full = self._inputs(TrackShape(FEW_ROWS[-1], MORE_SLOTS, MORE_POINTERS, points))
        self._steps: dict[tuple[bool, int], Steps] = {}

    @property
    def most_rows(self) -> int:
        """Of one run."""
        return self._counts[-1]

    @property
    def memory_bytes(self) -> int:
        """Of one object's memory in one frame."""
        return int(np.prod(self.memory_shape)) * self._step.kept_in.itemsize

    @property
    def worth_compiling(self) -> Sequence[int]:
        """Numbers of rows whose steps gain by compiling."""
        return self._counts if self._device.type == "cuda" else ()

    def _inputs(self, shape: TrackShape) -> TrackInputs:
        return TrackInputs(self._step, shape, self._device, self._spec.decoder.mask_side)

    # -- loading ---------------------------------------------------------------------------------------------

    def use_kernels(self) -> None:
        """Compiles and uses the kernels for attention to memories, if they work here, and captures every shape.

        That takes seconds, so that it comes after the start; between two shapes objects are tracked.
        """
        memory = self._step.memory
        memory.by_kernel = memory.by_kernel or kernel_tracks(self._device, memory.dtype, memory.width)
        if not self._capture:
            return
        # The largest first: the others share its memory.
        shapes = [*((self._plain, count) for count in reversed(self._counts)), *((self._full, 4), (self._full, 1))]
        for inputs, count in shapes:
            with self._lock, torch.inference_mode():
                self._steps[_key(inputs, count)] = self._made(inputs, count, self._step)
        torch.cuda.empty_cache()

    def use_compiled(self, count: int, folder: Path) -> None:
        """Replaces the step for ``count`` objects by compiled code, between two runs; SetupError if it is wrong.

        Args:
            folder: see :func:`~triton_sam.engines.torch.compiled_steps.load_compiled`.
        """
        function = load_compiled(folder, self._step, self._device)
        stream = new_stream(self._device) if self._stream is not None else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            if not any(self._agrees(function, count) for _ in range(_TRIALS)):
                raise SetupError(f"the compiled tracking of {count} objects remembers something else")
        with self._lock, torch.inference_mode():
            made = self._made(self._plain, count, function)
            if (known := self._steps.get(_key(self._plain, count))) is not None:
                made = made.instead_of(known)
            self._steps[_key(self._plain, count)] = made
            if stream is not None:
                torch.cuda.empty_cache()  # the comparison's memory: the embedding cache counts on it

    def _agrees(self, function: Callable[..., Any], count: int) -> bool:
        """Whether most objects get the same: of two masks that are equally good, rounding may choose the other one."""
        inputs = example(self._step, tracked_shape(count), self._device)
        near = 0
        for found, expected in zip(_rows_of(function(*inputs)), _rows_of(self._step(*inputs)), strict=True):
            near += is_near(found, expected)
        return near >= _MOST * count

    def _steps_for(self, inputs: TrackInputs, count: int) -> Steps:
        """Those that are captured, or uncaptured ones."""
        found = self._steps.get(_key(inputs, count))
        return found or Steps(self._step, inputs.tensors(count), None, ahead=lambda: inputs.send(count))

    def _made(self, inputs: TrackInputs, count: int, function: Callable[..., Any]) -> Steps:
        stream = self._stream if self._capture else None
        return Steps(function, inputs.tensors(count), stream, self._pool, ahead=lambda: inputs.send(count))

    # -- tracking --------------------------------------------------------------------------------------------

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        """See :meth:`~triton_sam.engines.tracking.TrackingEngine.track`."""
        padded = self._step.decoder.has_features
        points = [row_points(_as_row(row), always_padded=padded) for row in rows]
        plain = [index for index, row in enumerate(rows) if self._is_plain(row)]
        others = sorted(set(range(len(rows))) - set(plain))
        found: dict[int, Tracked] = {}
        with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
            for inputs, indices in ((self._plain, plain), (self._full, others)):
                most = inputs.shape.rows
                for start in range(0, len(indices), most):
                    batch = indices[start : start + most]
                    results = self._run(inputs, [rows[i] for i in batch], [points[i] for i in batch])
                    found.update(zip(batch, results, strict=True))
        return [found[index] for index in range(len(rows))]

    def _is_plain(self, row: TrackRow) -> bool:
        if row.attended is None or row.prompt is not None or row.mask is not None:
            return False
        return len(row.attended.memories) <= SLOTS and len(row.attended.pointers) <= POINTERS

    def _run(self, inputs: TrackInputs, rows: Sequence[TrackRow], points: Sequence[Sequence[Point]]) -> list[Tracked]:
        try:
            shape = _shape_for(inputs.shape, rows, points)
            if shape == inputs.shape:
                count = bucket(len(rows), self._counts if inputs is self._plain else FEW_ROWS)
                steps = self._steps_for(inputs, count)
            else:  # more points or memories than slots
                inputs = self._inputs(shape)
                steps = Steps(self._step, inputs.tensors(shape.rows), None, ahead=lambda: inputs.send(shape.rows))
            inputs.place(rows, points, self._place_masks(inputs, rows))
            logits, facts, pointers, memories = (tensor[: len(rows)] for tensor in steps.run())
            return self._results(rows, logits, facts, pointers, memories)
        finally:
            if self._stream is not None:
                self._stream.synchronize()  # pending work reads memory that is freed when this returns

    def _place_masks(self, inputs: TrackInputs, rows: Sequence[TrackRow]) -> list[int]:
        """Places earlier logits and given masks; returns the indices of rows whose given mask has pixels."""
        shown: list[int] = []
        if inputs.masks is None or inputs.given is None:
            return shown
        clip = self._spec.decoder.mask_clip
        for index, row in enumerate(rows):
            if row.mask is not None:
                prompt, logits, has_pixels = self._given.prepare(row.mask)
                inputs.masks[index].copy_(prompt)
                inputs.given[index].copy_(logits)
                shown += [index] if has_pixels else []
            elif row.previous is not None:
                previous = self._fetcher.host(*inputs.masks.shape[2:])
                np.clip(row.previous, -clip, clip, out=previous.numpy())
                inputs.masks[index, 0].copy_(previous)
        return shown

    def _results(
        self, rows: Sequence[TrackRow], logits: Tensor, facts: Tensor, pointers: Tensor, memories: Tensor
    ) -> list[Tracked]:
        """Copies the outputs, which the next run overwrites, and waits."""
        asked = [_as_row(row) for row in rows]
        masks = DeviceMasks(logits[:, None], logits[:, None])
        packed, columns = self._fetcher.pixels(masks, asked)
        low = self._fetcher.logits(masks, asked)
        numbers = self._fetcher.to_host(facts)
        # Each has memory of its own: rows are forgotten one by one.
        kept = [torch.empty_like(memory) for memory in memories]
        torch._foreach_copy_(kept, list(memories.unbind()))
        seen = pointers.clone().unbind()
        if self._stream is not None:
            self._stream.synchronize()
        array: FloatArray = numbers.numpy()
        if not math.isfinite(array.sum()):
            raise InternalError("tracking overflows its precision: set TRITON_SAM_TORCH_DTYPE=float32 on the server")
        return [
            Tracked(
                # Sessions keep logits, and pinned memory would never go back to the operating system.
                Decoded(array[index, :1].copy(), low[index].copy(), packed[index], columns[index]),
                float(array[index, 1]),
                kept[index],
                seen[index],
            )
            for index in range(len(rows))
        ]

    # -- memories outside the device -------------------------------------------------------------------------

    def memories_to_host(self, memories: Sequence[tuple[Tensor | None, Tensor]]) -> list[HostMemory]:
        """See :meth:`~triton_sam.engines.tracking.TrackingEngine.memories_to_host`.

        Beside tracking: whoever has a memory knows that its stream has written it.
        """
        pointers = self._to_host([pointer for _, pointer in memories], torch.float32)
        kept = [features.T for features, _ in memories if features is not None]
        features = iter(self._to_host(kept, torch.bfloat16))
        found = []
        for (present, _), pointer in zip(memories, pointers, strict=True):
            bits = None
            if present is not None:
                bits = next(features).view(torch.int16).numpy().view(np.uint16).reshape(self.memory_shape)
            found.append(HostMemory(bits, pointer.numpy()))
        return found

    def _to_host(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Tensors of one shape, with a few large copies in place of many small ones."""
        found: list[Tensor] = []
        with torch.inference_mode(), torch.cuda.stream(self._copies):
            for start in range(0, len(tensors), _COPIED):
                found += torch.stack(list(tensors[start : start + _COPIED])).to(dtype).cpu().unbind()
        return found

    def memory_from_host(self, memory: HostMemory) -> tuple[Tensor | None, Tensor]:
        """See :meth:`~triton_sam.engines.tracking.TrackingEngine.memory_from_host`."""
        # Under the lock: a copy would break a capture on this stream.
        with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
            kept = torch.from_numpy(np.array(memory.pointer, np.float32)).to(self._device)
            if memory.features is None:
                return None, kept
            flat = np.array(memory.features.reshape(len(memory.features), -1).T, np.uint16, order="C")
            bits = torch.from_numpy(flat.view(np.int16)).to(self._device).view(torch.bfloat16)
            return bits.to(self._step.kept_in), kept

    @property
    def memory_shape(self) -> tuple[int, int, int]:
        """[C,h,w] of a memory."""
        grid = self._step.decoder.layout.grid
        return self._step.width, grid, grid


def _key(inputs: TrackInputs, count: int) -> tuple[bool, int]:
    return inputs.shape.points > 0, count


def make_step(spec: ModelSpec, network: Any, decoder: RowDecoder, device: torch.device) -> TrackStep:
    """The step of a model on a device.

    Args:
        network: with a memory, on the CPU and in float32.
        decoder: of the same network, on the device in its dtype.
    """
    assert spec.memory is not None
    # The range of float32, which published networks were trained with: nobody has seen what theirs need.
    dtype = torch.float32 if decoder.dtype is torch.float32 else torch.bfloat16
    return TrackStep(network, decoder, spec.memory, spec.side).cast(device, dtype)


def make_runner(spec: ModelSpec, network: Any, decoder: RowDecoder, fetcher: Fetcher, *, capture: bool) -> TrackRunner:
    """As :func:`make_step`, on the fetcher's device."""
    assert spec.memory is not None
    step = make_step(spec, network, decoder, fetcher.device)
    given = GivenMasks(network.mask_downsample, spec.memory, spec.decoder.mask_side, fetcher.device)
    return TrackRunner(spec, step, given, fetcher, capture=capture)


def tracked_shape(count: int) -> TrackShape:
    """Of a step for objects that are only tracked."""
    return TrackShape(count, SLOTS, POINTERS, 0)


def example(step: TrackStep, shape: TrackShape, device: torch.device) -> tuple[Tensor, ...]:
    """Inputs of random numbers for a step of tracked objects, with three memories and pointers a row."""
    inputs = TrackInputs(step, shape, device, mask_side=1)
    ages, distances, counts, flags, _ = shape.split(inputs.sent)
    ages[:], ages[:, :3], distances[:], flags[:, :2] = -1, 1, 0.1, 1
    cells = len(step.memory.places)
    counts[:] = torch.tensor([3 * cells, 3 * step.no_object.shape[1] // step.width])
    for tensor in (inputs.rows, inputs.cells, inputs.pointers):
        tensor.normal_()
    inputs.send(shape.rows)
    return tuple(inputs.tensors(shape.rows))


def _rows_of(outputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Scores, the pointer and the memory of each row; logits are all the same where no object is there."""
    _, facts, pointers, memories = outputs
    return list(zip(facts[:, :2], pointers, memories, strict=True))


def _shape_for(usual: TrackShape, rows: Sequence[TrackRow], points: Sequence[Sequence[Point]]) -> TrackShape:
    """The usual shape, or one with more slots for what does not fit."""
    attended = [row.attended for row in rows if row.attended is not None]
    slots = max((len(one.memories) for one in attended), default=0)
    pointers = max((len(one.pointers) for one in attended), default=0)
    listed = max(map(len, points)) if usual.points else 0
    if slots <= usual.slots and pointers <= usual.pointers and listed <= usual.points:
        return usual
    # An even number of pointers, as kernels take it.
    pointers += -pointers % MORE_POINTERS
    return TrackShape(len(rows), max(usual.slots, slots), max(usual.pointers, pointers), max(usual.points, listed))


def _as_row(row: TrackRow) -> Row:
    """What the click path calls a row."""
    prompt = _NO_PROMPT if row.prompt is None else row.prompt
    return Row(row.embedding, prompt, logits=True, pixels=row.pixels, columns=row.columns)
