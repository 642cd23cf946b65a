"""Shared memory into which a device writes masks, and from which Triton processes read them: nobody copies.

All Triton processes of a worker share it. It has no name, as that of ``shared_slots``.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from triton_sam.engines.base import ByteArray

#: Sixteen masks of 1536 x 1024 pixels have 3 MiB. Larger results are copied.
_BLOCK_BYTES = 4 * 1024 * 1024
#: A block is in use until the last of its masks was sent to a client.
_BLOCKS = 24
#: Results in a block that may be lent at a time.
_LOANS = 16
_START = 4096
_LENGTH = _START + _BLOCKS * _BLOCK_BYTES
_BACK, _LENT = 0, 1


class ResultBlocks:
    """The worker's end: an engine takes blocks, results in them are lent to Triton processes.

    A block is free when no array refers to it and everything lent was given back.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("triton-sam results", os.MFD_CLOEXEC)
        """To be passed to Triton processes, for :class:`LentResults`."""
        os.ftruncate(self.descriptor, _LENGTH)
        self._map = mmap.mmap(self.descriptor, _LENGTH)
        self.whole: ByteArray = np.frombuffer(self._map, np.uint8)
        """All of it, for an engine that has to prepare it."""
        self._address = _address(self.whole)
        self._taken: list[weakref.ref[Any] | None] = [None] * _BLOCKS
        self._lent = [0] * _BLOCKS
        self._borrowers: dict[int, object] = {}
        self._next = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> ByteArray | None:
        """[size] bytes that are in use as long as an array refers to them; None if there is no room."""
        if size > _BLOCK_BYTES:
            return None
        with self._lock:
            for step in range(_BLOCKS):
                block = (self._next + step) % _BLOCKS
                if self._is_free(block):
                    at = _START + block * _BLOCK_BYTES
                    # Not a slice of the whole array: arrays made of this one would refer to that one.
                    array = np.frombuffer(memoryview(self._map)[at : at + size], np.uint8)
                    self._taken[block] = weakref.ref(array)
                    self._lent[block] = 0
                    self._next = block + 1
                    return array
        return None

    def lend(self, result: memoryview, borrower: object) -> tuple[int, int] | None:
        """Lends a result to a Triton process; (number of the loan, offset), or None if it is elsewhere in memory."""
        offset = _address(np.frombuffer(result, np.uint8)) - self._address
        if not _START <= offset < _LENGTH:
            return None
        block = (offset - _START) // _BLOCK_BYTES
        with self._lock:
            loan = block * _LOANS + self._lent[block]
            if self._lent[block] == _LOANS:
                return None
            self._lent[block] += 1
            self._borrowers[loan] = borrower
            self._map[loan] = _LENT
        return loan, offset

    def forget(self, borrower: object) -> None:
        """Takes back what was lent to a Triton process that has ended."""
        with self._lock:
            for loan, other in self._borrowers.items():
                if other is borrower:
                    self._map[loan] = _BACK

    @property
    def free(self) -> int:
        """Number of free blocks."""
        with self._lock:
            return sum(map(self._is_free, range(_BLOCKS)))

    def _is_free(self, block: int) -> bool:
        taken = self._taken[block]
        first = block * _LOANS
        return (taken is None or taken() is None) and self._map.find(bytes([_LENT]), first, first + _LOANS) < 0


class LentResults:
    """A Triton process's end: reads results and gives them back."""

    def __init__(self, descriptor: int) -> None:
        """
        Args:
            descriptor: of :class:`ResultBlocks`; it is closed here.
        """
        try:
            self._map = mmap.mmap(descriptor, _LENGTH)
        finally:
            os.close(descriptor)

    def view(self, offset: int, length: int) -> memoryview:
        """A result; valid until :meth:`give_back`."""
        return memoryview(self._map)[offset : offset + length]

    def give_back(self, loan: int) -> None:
        """Lets the worker use the memory of a result again."""
        self._map[loan] = _BACK


def _address(array: ByteArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
