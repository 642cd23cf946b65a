"""Blocks of shared memory that one process fills and another one frees, without a message.

The memory has no name: it is passed as a file descriptor, and the kernel frees it with the last process that has it
open. So nothing is left behind, however a process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: (bytes of a slot, number of slots). A mask of 1536 x 1024 pixels has 192 KiB, an image a few MiB. Memory that was
#: never written takes no room.
SIZES = ((256 * 1024, 128), (4 * 1024 * 1024, 32))
_FREE, _BUSY = 0, 1
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class _Size:
    first: int
    """Index of its first slot."""
    end: int
    bytes: int
    offset: int
    """Of its first slot, in bytes."""


def _layout() -> tuple[list[_Size], int]:
    count = sum(number for _, number in SIZES)
    first, offset = 0, -(-count // _PAGE) * _PAGE
    sizes = []
    for each, number in SIZES:
        sizes.append(_Size(first, first + number, each, offset))
        first, offset = first + number, offset + each * number
    return sizes, offset


class SharedSlots:
    """One direction between two processes. The writer calls :meth:`write`, the reader :meth:`view` and :meth:`free`.

    One byte for each slot says whether it is in use; each side writes a byte only when it is the slot's owner.
    """

    def __init__(self, descriptor: int) -> None:
        """
        Args:
            descriptor: of :func:`new_memory`; it is closed here.
        """
        self._sizes, length = _layout()
        try:
            self._map = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def write(self, parts: Sequence[bytes | memoryview]) -> int | None:
        """Copies ``parts`` one after the other into a free slot and returns it; None if none is free or large enough.

        Not thread-safe.
        """
        total = sum(len(part) for part in parts)
        for size in self._sizes:
            if total > size.bytes:
                continue
            slot = self._map.find(bytes([_FREE]), size.first, size.end)
            if slot < 0:
                continue
            self._map[slot] = _BUSY
            at = size.offset + (slot - size.first) * size.bytes
            for part in parts:
                # numpy copies without Python's lock, which other threads need meanwhile.
                self._bytes[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            return slot
        return None

    def view(self, slot: int, length: int) -> memoryview:
        """The first ``length`` bytes of a slot; valid until :meth:`free`."""
        size = next(size for size in self._sizes if slot < size.end)
        at = size.offset + (slot - size.first) * size.bytes
        return memoryview(self._map)[at : at + length]

    def free(self, slot: int) -> None:
        """Gives a slot back to the writer."""
        self._map[slot] = _FREE

    @property
    def in_use(self) -> int:
        """Number of slots that are not free."""
        return bytes(self._map[: self._sizes[-1].end]).count(_BUSY)


def new_memory() -> int:
    """The descriptor of new memory for :class:`SharedSlots`."""
    descriptor = os.memfd_create("triton-sam", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _layout()[1])
    return descriptor
