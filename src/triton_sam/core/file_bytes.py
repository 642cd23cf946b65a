"""A file's bytes, read when they are asked for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

#: Directories of a TIFF are read in pieces of a few bytes.
_BLOCK = 8192


class FileBytes:
    """The bytes of a file that is not read as a whole.

    Not a memory map: with one, a network share that goes away kills the process (SIGBUS) instead of raising an error.
    Several threads may read.

    Attributes:
        failure: the last error of the system; decoders turn errors into sentences, and it would be lost.
    """

    def __init__(self, path: Path) -> None:
        self.failure: OSError | None = None
        self._lock = threading.Lock()
        self._block = (0, b"")
        self._file = path.open("rb", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        count = max(0, stop - start)
        with self._lock:
            if count >= _BLOCK:
                return self._read(start, count)
            first, block = self._block
            if not (first <= start and stop <= first + len(block)):
                first, block = self._block = start, self._read(start, _BLOCK)
            return block[start - first : start - first + count]

    def __bytes__(self) -> bytes:
        return self[:]

    def close(self) -> None:
        """Ends it."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it was opened
            self.close()

    def _read(self, start: int, count: int) -> bytes:
        try:
            self._file.seek(start)
            parts = []
            while count > 0 and (part := self._file.read(count)):  # a raw file may give less than it was asked for
                parts.append(part)
                count -= len(part)
            return b"".join(parts)
        except OSError as error:
            self.failure = error
            raise
