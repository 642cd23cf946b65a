"""Rows of clicks through the decoder: batched into fixed shapes, and their masks back to the host."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from triton_sam.engines.base import Decoded, Row
from triton_sam.engines.torch.decoder import Masks, RowDecoder
from triton_sam.engines.torch.graphs import StepMaker, Steps, bucket
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.packing import packed_masks
from triton_sam.engines.torch.slots import fill_slots, row_points
from triton_sam.errors import InternalError
from triton_sam.specs import ModelSpec

_ROWS = (1, 2, 4, 8, 16)
#: Prompt slots and the decoder's own tokens together come to a multiple of this, which suits the hardware.
_TOKENS = 16
#: So many multiples are captured. Longer prompts run as they are.
_CAPTURED = 2


class RowRunner:
    """One decoder on one stream, with buffers that stay in place."""

    MOST_ROWS: ClassVar[int] = _ROWS[-1]

    def __init__(
        self,
        spec: ModelSpec,
        decoder: RowDecoder,
        layout: Layout,
        device: torch.device,
        stream: torch.cuda.Stream | None,
        maker: StepMaker | None = None,
        *,
        capture: bool = True,
    ) -> None:
        self._spec = spec
        self._decoder = decoder
        self._device = device
        self._stream = stream
        self._maker = maker
        self._capture = capture and stream is not None
        self._lock = threading.Lock()
        own = len(decoder.own_tokens)
        self._slots = tuple(_TOKENS * times - own for times in range(1, _CAPTURED + 1))
        #: Which embedding lies in which row of the input: who clicks again on an image need not wait for its copy.
        self._lying: list[weakref.ref[Tensor] | None] = [None] * self.MOST_ROWS
        side = spec.decoder.mask_side
        self._rows = torch.zeros(self.MOST_ROWS, layout.length, dtype=decoder.dtype, device=device)
        self._masks = torch.zeros(self.MOST_ROWS, 1, side, side, device=device)
        self._points = {count: torch.zeros(self.MOST_ROWS, count, 3, device=device) for count in self._slots}
        self._steps: dict[Hashable, Steps] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    def warm_up(self) -> Iterator[str]:
        """Captures every shape; yields a word on what is ready."""
        for masked in (False, True):
            for slots in self._slots:
                for rows in _ROWS if self._capture else ():
                    self._steps_for(rows, slots, masked)
            kind = "with masks as prompts" if masked else "for points and boxes"
            yield f"decoder {kind}, up to {self.MOST_ROWS} rows"

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        """Rows of any images and prompts -> one answer each, in order."""
        points = [row_points(row, always_padded=self._decoder.has_features) for row in rows]
        answers: list[Decoded | None] = [None] * len(rows)
        groups: dict[tuple[int, bool], list[int]] = {}
        for index, row in enumerate(rows):
            slots = self._slots_for(len(points[index]))
            groups.setdefault((slots, row.prompt.mask_input is not None), []).append(index)
        for (slots, masked), indices in groups.items():
            for start in range(0, len(indices), self.MOST_ROWS):
                batch = indices[start : start + self.MOST_ROWS]
                with self._lock, torch.inference_mode(), torch.cuda.stream(self._stream):
                    decoded = self._run([rows[i] for i in batch], [points[i] for i in batch], slots, masked)
                for index, answer in zip(batch, decoded, strict=True):
                    answers[index] = answer
        return [answer for answer in answers if answer is not None]

    def _slots_for(self, points: int) -> int:
        """The smallest number of slots that holds so many points."""
        own = _TOKENS - self._slots[0]
        return -(-(points + own) // _TOKENS) * _TOKENS - own

    def _place(self, rows: Sequence[Row]) -> None:
        """Puts the embeddings of some rows in place, but for those that lie there already."""
        wanted: list[Tensor] = [row.embedding.row for row in rows]  # type: ignore[attr-defined]
        moving = [
            index for index, row in enumerate(wanted) if (lies := self._lying[index]) is None or lies() is not row
        ]
        if moving:
            targets = [self._rows[index] for index in moving]
            torch._foreach_copy_(targets, [wanted[index] for index in moving])
            for index in moving:
                self._lying[index] = weakref.ref(wanted[index])

    def _run(self, rows: Sequence[Row], points: Sequence[Any], slots: int, masked: bool) -> list[Decoded]:
        count = bucket(len(rows), _ROWS)
        placed = self._host(count, slots, 3)
        fill_slots(placed.numpy(), points)
        self._place(rows)
        if masked:
            self._masks[: len(rows)].copy_(self._sent_masks(rows), non_blocking=True)
        if slots in self._slots:
            self._points[slots][:count].copy_(placed, non_blocking=True)
            masks, facts = self._steps_for(count, slots, masked).run()
        else:
            given = [self._rows[:count], placed.to(self._device), *([self._masks[:count]] if masked else [])]
            masks, facts = self._function(*given)
        return _Results(self, masks, facts, rows).fetched()

    def _steps_for(self, rows: int, slots: int, masked: bool) -> Steps:
        key = (rows, slots, masked)
        if key not in self._steps:
            inputs = [self._rows[:rows], self._points[slots][:rows], *([self._masks[:rows]] if masked else [])]
            stream = self._stream if self._capture else None
            # Compiling takes seconds for every shape. Who clicks alone feels it; batches are busy with arithmetic.
            lone = key == (1, self._slots[0], False)
            maker = self._maker if lone and self._maker is not None else StepMaker(self._spec.id)
            self._steps[key] = maker.make(self._function, inputs, stream, self._pool)
        return self._steps[key]

    def _function(self, *inputs: Tensor) -> tuple[Masks, Tensor]:
        """The decoder's answer, and its small numbers [R,M+2] together: the scores, then the choice."""
        masks = self._decoder(*inputs)
        return masks, torch.cat([masks.scores, masks.choice[:, None].float()], dim=1)

    def _sent_masks(self, rows: Sequence[Row]) -> Tensor:
        clip, side = self._spec.decoder.mask_clip, self._spec.decoder.mask_side
        sent = self._host(len(rows), 1, side, side)
        for slot, row in zip(sent.numpy(), rows, strict=True):
            assert row.prompt.mask_input is not None  # the group has them
            np.clip(row.prompt.mask_input, -clip, clip, out=slot[0])
        return sent

    def _host(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory of this process, which a GPU reads and writes by itself."""
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def to_host(self, tensor: Tensor) -> Tensor:
        """Starts a copy; see :meth:`wait`."""
        if self._device.type != "cuda":
            return tensor.clone()
        target = self._host(*tensor.shape, dtype=tensor.dtype)
        target.copy_(tensor, non_blocking=True)
        return target

    def wait(self) -> None:
        """Until everything that was started is there."""
        if self._stream is not None:
            self._stream.synchronize()


class _Results:
    """What comes back of one run: few and large copies, one wait."""

    def __init__(self, runner: RowRunner, masks: Masks, facts: Tensor, rows: Sequence[Row]) -> None:
        self._runner = runner
        self._masks = masks
        self._facts = facts
        self._rows = rows

    def fetched(self) -> list[Decoded]:
        facts = self._runner.to_host(self._facts[: len(self._rows)])
        logits: list[tuple[list[int], Tensor]] = []
        packed: list[tuple[list[int], Tensor]] = []
        for indices in self._alike(lambda row: (row.embedding.frame, row.multimask) if row.pixels else None):
            frame = self._rows[indices[0]].embedding.frame
            stacked = self._logits(indices)
            bits = packed_masks(stacked.flatten(0, 1), frame)
            packed.append((indices, self._runner.to_host(bits).view(*stacked.shape[:2], *bits.shape[1:])))
        for indices in self._alike(lambda row: row.multimask if row.logits else None):
            logits.append((indices, self._runner.to_host(self._logits(indices))))
        self._runner.wait()
        numbers = facts.numpy()
        if not np.isfinite(numbers).all():
            raise InternalError("the decoder left the range of its numbers: set TRITON_SAM_TORCH_DTYPE=float32")
        logits_of, packed_of = _by_row(logits), _by_row(packed)
        return [
            self._decoded(row, numbers[index], logits_of.get(index), packed_of.get(index))
            for index, row in enumerate(self._rows)
        ]

    def _alike(self, kind: Any) -> list[list[int]]:
        """Indices of the rows that share a kind; those of kind None are left out."""
        groups: dict[Hashable, list[int]] = {}
        for index, row in enumerate(self._rows):
            if (key := kind(row)) is not None:
                groups.setdefault(key, []).append(index)
        return list(groups.values())

    def _logits(self, indices: list[int]) -> Tensor:
        """[K,M,h,w] of rows that want all masks or of rows that want one."""
        source = self._masks.logits[:, 1:] if self._rows[indices[0]].multimask else self._masks.best[:, None]
        if indices == list(range(indices[0], indices[0] + len(indices))):
            return source[indices[0] : indices[0] + len(indices)]
        return torch.stack([source[index] for index in indices])

    def _decoded(self, row: Row, facts: Any, logits: Any, packed: Any) -> Decoded:
        scores, choice = facts[:-1], int(facts[-1])
        return Decoded(scores[1:] if row.multimask else scores[choice : choice + 1], logits, packed)


def _by_row(groups: list[tuple[list[int], Tensor]]) -> dict[int, Any]:
    """Row -> its array; arrays of a group are slices of one, which is far quicker than tensor after tensor."""
    return {index: array for indices, tensor in groups for index, array in zip(indices, tensor.numpy(), strict=True)}
