"""The inputs of a tracking step, in fixed memory: images, memories and pointers of rows, and their numbers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from triton_sam.engines.base import FloatArray
from triton_sam.engines.torch.slots import Point, fill_slots
from triton_sam.engines.torch.tracking_step import Flags, TrackShape, TrackStep
from triton_sam.engines.tracking import Remember, TrackRow

_EMPTY = -1.0


class TrackInputs:
    """For at most ``shape.rows`` rows; a step for fewer takes the first ones."""

    def __init__(self, step: TrackStep, shape: TrackShape, device: torch.device, mask_side: int) -> None:
        """
        Args:
            mask_side: of logits.
        """
        decoder, memory = step.decoder, step.memory
        self.shape = shape
        self._count, self._width = len(memory.places), step.width
        rows = shape.rows
        pieces = shape.pointers * (step.no_object.shape[1] // step.width)
        self.rows = torch.zeros(rows, decoder.layout.length, dtype=decoder.dtype, device=device)
        self.numbers = torch.zeros(rows, shape.numbers, device=device)
        self.cells = torch.zeros(
            rows, shape.slots * self._count + pieces, step.width, dtype=memory.dtype, device=device
        )
        self.pointers = torch.zeros(rows, shape.pointers, step.no_object.shape[1], device=device)
        prompted = shape.points > 0
        self.masks = torch.zeros(rows, 1, mask_side, mask_side, device=device) if prompted else None
        self.given = torch.zeros(rows, mask_side, mask_side, device=device) if prompted else None
        self.sent = torch.zeros(rows, shape.numbers, pin_memory=device.type == "cuda")
        self._sent_arrays: list[FloatArray] = shape.split(self.sent.numpy())
        #: The embedding in each row: the next object of the frame needs no copy.
        self._loaded: list[weakref.ref[Tensor] | None] = [None] * rows
        # Views are made once: each takes longer than a copy.
        self._each_row = self.rows.unbind()
        filled = self.cells[:, : shape.slots * self._count].view(rows, shape.slots, self._count, step.width)
        self._each_memory = [row.unbind() for row in filled.unbind()]
        self._each_pointer = [row.unbind() for row in self.pointers.unbind()]

    def tensors(self, count: int) -> list[Tensor]:
        """Inputs of :class:`TrackStep` for the first ``count`` rows."""
        found = [self.rows, self.numbers, self.cells, self.pointers]
        if self.masks is not None and self.given is not None:
            found += [self.masks, self.given]
        return [tensor[:count] for tensor in found]

    def send(self, count: int) -> None:
        """Starts what a step needs first: numbers go to the device, and pointers in pieces behind the memories."""
        self.numbers[:count].copy_(self.sent[:count], non_blocking=True)
        pieces = self.cells[:count, self.shape.slots * self._count :]
        pieces.copy_(self.pointers[:count].reshape(pieces.shape))

    def place(
        self, rows: Sequence[TrackRow], points: Sequence[Sequence[Point]] = (), shown: Sequence[int] = ()
    ) -> None:
        """Copies what lies on the device, and fills in the numbers. Masks are placed elsewhere.

        Args:
            points: of each row's prompt, for shapes with prompts.
            shown: indices of rows whose given mask has pixels.
        """
        self._place_images(rows)
        # Apart, because only tensors of one type are copied at once.
        memories_to: list[Tensor] = []
        memories_from: list[Tensor] = []
        pointers_to: list[Tensor] = []
        pointers_from: list[Tensor] = []
        ages, distances, counts, flags, listed = self._sent_arrays
        ages[:], distances[:], counts[:], flags[:] = _EMPTY, 0, 0, 0
        for index, row in enumerate(rows):
            flags[index] = _flags(row, shown=index in shown)
            if row.attended is None:
                continue
            memories, pointers = row.attended.memories, row.attended.pointers
            counts[index] = len(memories) * self._count, len(pointers) * (self.pointers.shape[2] // self._width)
            for slot, (features, age) in enumerate(memories):
                memories_to.append(self._each_memory[index][slot])
                memories_from.append(features)
                ages[index, slot] = age
            for slot, (pointer, distance) in enumerate(pointers):
                pointers_to.append(self._each_pointer[index][slot])
                pointers_from.append(pointer)
                distances[index, slot] = distance / row.attended.span
        if memories_to:
            torch._foreach_copy_(memories_to, memories_from)
        if pointers_to:
            torch._foreach_copy_(pointers_to, pointers_from)
        if self.shape.points:
            slots = np.empty((len(listed), self.shape.points, 3), np.float32)
            fill_slots(slots, points)
            listed[:] = slots.reshape(listed.shape)

    def _place_images(self, rows: Sequence[TrackRow]) -> None:
        wanted: list[Tensor] = [row.embedding.row for row in rows]  # type: ignore[attr-defined]
        moving = [
            index for index, row in enumerate(wanted) if (held := self._loaded[index]) is None or held() is not row
        ]
        for index in moving:  # if the copy fails, the row holds nothing valid
            self._loaded[index] = None
        if moving:
            torch._foreach_copy_([self._each_row[index] for index in moving], [wanted[index] for index in moving])
        for index in moving:
            self._loaded[index] = weakref.ref(wanted[index])


def _flags(row: TrackRow, *, shown: bool) -> Flags:
    several = row.mask is None and (row.prompt is None or _clicks(row) <= 1)
    return Flags(
        attends=float(row.attended is not None and row.mask is None),
        several=float(several),
        hard=float(row.remember is Remember.HARD),
        masked=float(row.mask is not None or row.previous is not None),
        given=float(row.mask is not None),
        shown=float(shown),
    )


def _clicks(row: TrackRow) -> int:
    """Points of a prompt; a box counts as two."""
    assert row.prompt is not None
    return len(row.prompt.points) + (0 if row.prompt.box is None else 2)
