"""Copies the decoder's masks from the device to the host: in few large copies, with one wait for all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triton_sam.core.geometry import Frame
from triton_sam.engines.base import ByteArray, ResultMemory, Row
from triton_sam.engines.torch.packing import kernel_packs, packed_by_kernel, packed_masks

log = logging.getLogger(__name__)


class DeviceMasks(NamedTuple):
    """Masks of R rows on the device, in float32.

    Attributes:
        single: [R,1,h,w], for rows without multimask.
        several: [R,M,h,w], for rows with multimask.
    """

    single: Tensor
    several: Tensor


class Fetcher:
    """Starts copies on the current stream. Results are new arrays, valid after the stream is synchronised."""

    def __init__(self, device: torch.device, memory: ResultMemory | None = None) -> None:
        """
        Args:
            memory: for packed masks, if the kernel makes them; None uses memory of this process.
        """
        self._on_gpu = device.type == "cuda"
        self.device = device
        self._by_kernel = False
        #: Whether columns are packed if they are needed. Torch's operators take longer for them than an RLE of rows.
        self._packs_columns = False
        self._memory = memory
        self._take: Callable[[int], ByteArray | None] | None = None

    def warm_up(self) -> None:
        """Compiles the kernels that pack masks, if they work here."""
        self._by_kernel = kernel_packs(self.device)
        self._packs_columns = self._by_kernel and kernel_packs(self.device, columns=True)
        if self._by_kernel and self._memory is not None and _known_to_gpu(self._memory):
            self._take = self._memory.take

    def host(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Host memory, pinned if there is a GPU."""
        return torch.empty(shape, dtype=dtype, pin_memory=self._on_gpu)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Starts a copy."""
        if not self._on_gpu:
            return tensor.clone()
        target = self.host(*tensor.shape, dtype=tensor.dtype)
        target.copy_(tensor, non_blocking=True)
        return target

    def logits(self, masks: DeviceMasks, rows: Sequence[Row]) -> list[Any]:
        """For each row [M,h,w] float32, or None if it does not need them."""
        found: list[Any] = [None] * len(rows)
        wanted = [index for index, row in enumerate(rows) if row.logits]
        for multimask in (False, True) if wanted else ():
            indices = [index for index in wanted if rows[index].multimask is multimask]
            if indices:
                copied = self.to_host(_select(masks.several if multimask else masks.single, indices))
                # The arrays of a group are slices of one array, which is far faster than one tensor each.
                for index, array in zip(indices, copied.numpy(), strict=True):
                    found[index] = array
        return found

    def pixels(self, masks: DeviceMasks, rows: Sequence[Row]) -> tuple[list[Any], list[Any]]:
        """For each row [M,H,ceil(W/8)] uint8, and for each [M,W,ceil(H/8)], or None if it does not need them.

        A row that needs columns gets rows where no kernel packs columns.
        """
        first = rows[0]
        frame, multimask, pixels, columns = first.embedding.frame, first.multimask, first.pixels, first.columns
        for row in rows:  # usually all are alike; hashing frames is needed only if they are not
            other = row.embedding.frame
            if (
                row.pixels is not pixels
                or row.columns is not columns
                or row.multimask is not multimask
                or (other is not frame and other != frame)
            ):
                return self._mixed_pixels(masks, rows)
        source = masks.several if multimask else masks.single
        logits = source if len(source) == len(rows) else source[: len(rows)]
        by_rows, by_columns = self._forms(first)
        return (
            list(self._packed(logits, frame, columns=False)) if by_rows else [None] * len(rows),
            list(self._packed(logits, frame, columns=True)) if by_columns else [None] * len(rows),
        )

    def _mixed_pixels(self, masks: DeviceMasks, rows: Sequence[Row]) -> tuple[list[Any], list[Any]]:
        found: tuple[list[Any], list[Any]] = [None] * len(rows), [None] * len(rows)
        groups: dict[tuple[Frame, bool, bool], list[int]] = {}
        for index, row in enumerate(rows):
            for columns, is_made in enumerate(self._forms(row)):
                if is_made:
                    groups.setdefault((row.embedding.frame, row.multimask, bool(columns)), []).append(index)
        for (frame, multimask, columns), indices in groups.items():
            logits = _select(masks.several if multimask else masks.single, indices)
            packed = self._packed(logits, frame, columns=columns)
            for index, array in zip(indices, packed, strict=True):
                found[columns][index] = array
        return found

    def _forms(self, row: Row) -> tuple[bool, bool]:
        """Whether rows are packed for a row, and whether columns are."""
        return row.pixels or (row.columns and not self._packs_columns), row.columns and self._packs_columns

    def _packed(self, logits: Tensor, frame: Frame, *, columns: bool) -> ByteArray:
        """[K,M,h,w] -> [K,M,H,ceil(W/8)], or [K,M,W,ceil(H/8)] for columns."""
        if self._by_kernel:
            packed = packed_by_kernel(logits, frame, self._take, columns=columns)
            if packed is not None:
                return packed
        bits = packed_masks(logits.flatten(0, 1), frame, columns=columns)
        array: ByteArray = self.to_host(bits).numpy()
        return array.reshape(*logits.shape[:2], *array.shape[1:])


def _known_to_gpu(memory: ResultMemory) -> bool:
    """Lets the GPU write to memory; False if it cannot."""
    whole = memory.whole
    cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(cuda.cudaHostRegister(whole.ctypes.data, whole.nbytes, 0))
    if code:
        log.warning("masks are copied once more: the GPU cannot write to shared memory (CUDA error %d)", code)
    return not code


def _select(source: Tensor, indices: list[int]) -> Tensor:
    """Some rows of [R,M,h,w], ``indices`` ascending; a view if they are contiguous."""
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return source[first : last + 1]
    return torch.stack([source[index] for index in indices])
