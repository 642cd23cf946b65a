"""The frames of a video on the disk: image files one behind the other, and where each ends."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from triton_sam.service.videos.absent import no_video
from triton_sam.video.clip import Clip, ClipFrame

FRAMES_FILE, INDEX_FILE = "frames", "frames.index"


class FrameWriter:
    """Writes frames, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FRAMES_FILE).open("xb")
        self._index = folder / INDEX_FILE
        self._ends: array[int] = array("Q")
        self._seconds: array[float] = array("d")

    @property
    def count(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, data: bytes, seconds: float | None) -> None:
        self._file.write(data)
        self._ends.append(self.size + len(data))
        self._seconds.append(math.nan if seconds is None else seconds)

    def close(self) -> None:
        self._file.close()
        self._index.write_bytes(self._ends.tobytes() + self._seconds.tobytes())


class FrameStore:
    """Reads frames, and adds further ones. Threads may share it.

    After :meth:`close`, all of it raises NotFound, and what is under way ends with the file it began with.
    """

    def __init__(self, folder: Path) -> None:
        """Those that are there; none yet in an empty folder."""
        self._file = os.open(folder / FRAMES_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock, self._adding = threading.Lock(), threading.Lock()
        self._users, self._is_closed = 0, False
        self._mapped: mmap.mmap | None = None
        self._ends: array[int] = array("Q")
        self._seconds: array[float] = array("d")
        index = folder / INDEX_FILE
        self._index = index
        if index.exists():
            content = index.read_bytes()
            self._ends.frombytes(content[: len(content) // 2])
            self._seconds.frombytes(content[len(content) // 2 :])

    @property
    def count(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> ClipFrame:
        """A frame that is there."""
        start = self._ends[index - 1] if index else 0
        with self._opened() as file:
            data = os.pread(file, self._ends[index] - start, start)
        return self._frame(index, data)

    def view(self, index: int) -> ClipFrame:
        """As :meth:`read`, with bytes that stay on the disk: sessions keep many frames, to go on after a loss."""
        start, end = self._ends[index - 1] if index else 0, self._ends[index]
        if start == end:
            return self._frame(index, b"")
        with self._opened() as file, self._lock:
            # One for all frames: each mapping keeps a file open as long as anybody has a frame of it.
            if self._mapped is None or len(self._mapped) < end:
                length = os.fstat(file).st_size
                if self._mapped is not None:  # frames come one by one, and a further mapping for each would be many
                    length = max(length, 2 * len(self._mapped))
                    os.ftruncate(file, length)
                self._mapped = mmap.mmap(file, length, prot=mmap.PROT_READ)
            data = memoryview(self._mapped)[start:end]
        return self._frame(index, cast("bytes", data))

    def _frame(self, index: int, data: bytes) -> ClipFrame:
        seconds = self._seconds[index]
        return ClipFrame(index, data, None if math.isnan(seconds) else seconds)

    def add(self, data: bytes) -> None:
        """Puts a frame behind the others."""
        with self._opened() as file, self._adding:
            start, written = self.size, 0
            while written < len(data):
                written += os.pwrite(file, memoryview(data)[written:], start + written)
            self._seconds.append(math.nan)
            self._ends.append(start + len(data))  # last: who reads the count finds the frame

    def write_index(self) -> None:
        """For other processes."""
        with self._opened():
            self._index.write_bytes(self._ends.tobytes() + self._seconds.tobytes())

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, which is not closed in this block: its number would be another file's soon."""
        with self._lock:
            if self._is_closed:
                raise no_video()
            self._users += 1
        try:
            yield self._file
        finally:
            with self._lock:
                self._users -= 1
                self._close_unused()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._mapped = None
            self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closed and not self._users and self._file >= 0:
            os.close(self._file)
            self._file = -1


class StoredClip(Clip):
    """A video whose frames are in a store; if it grows, it has no length yet."""

    # Many parameters: what is known of a video.
    def __init__(
        self,
        store: FrameStore,
        size: tuple[int, int],
        *,
        name: str = "the video",
        rate: float | None = None,
        grows: bool = False,
    ) -> None:
        self.name, self.size, self.rate = name, size, rate
        self._store = store
        self.length = None if grows else store.count

    @property
    def count_now(self) -> int:
        """Frames so far."""
        return self._store.count

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        index = max(0, first)
        while index < self._store.count and (last is None or index <= last):
            yield self._store.view(index)
            index += 1

    def close(self) -> None:
        self._store.close()
