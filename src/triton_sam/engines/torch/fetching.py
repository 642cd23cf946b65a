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
        self._memory = memory
        self._take: Callable[[int], ByteArray | None] | None = None

    def warm_up(self) -> None:
        """Compiles the kernel that packs masks, if it works here."""
        self._by_kernel = kernel_packs(self.device)
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

    def pixels(self, masks: DeviceMasks, rows: Sequence[Row]) -> list[Any]:
        """For each row [M,H,ceil(W/8)] uint8, or None if it does not need them."""
        first = rows[0]
        frame, multimask = first.embedding.frame, first.multimask
        for row in rows:  # usually all are alike; hashing frames is needed only if they are not
            other = row.embedding.frame
            if not row.pixels or row.multimask is not multimask or (other is not frame and other != frame):
                return self._mixed_pixels(masks, rows)
        source = masks.several if multimask else masks.single
        return list(self._packed(source if len(source) == len(rows) else source[: len(rows)], frame))

    def _mixed_pixels(self, masks: DeviceMasks, rows: Sequence[Row]) -> list[Any]:
        found: list[Any] = [None] * len(rows)
        groups: dict[tuple[Frame, bool], list[int]] = {}
        for index, row in enumerate(rows):
            if row.pixels:
                groups.setdefault((row.embedding.frame, row.multimask), []).append(index)
        for (frame, multimask), indices in groups.items():
            packed = self._packed(_select(masks.several if multimask else masks.single, indices), frame)
            for index, array in zip(indices, packed, strict=True):
                found[index] = array
        return found

    def _packed(self, logits: Tensor, frame: Frame) -> ByteArray:
        """[K,M,h,w] -> [K,M,H,ceil(W/8)]."""
        if self._by_kernel and (packed := packed_by_kernel(logits, frame, self._take)) is not None:
            return packed
        bits = packed_masks(logits.flatten(0, 1), frame)
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
