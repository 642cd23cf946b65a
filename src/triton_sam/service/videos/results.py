"""What was found in the frames of a video: on the disk, with a little about each frame in memory."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from triton_sam.core.rle import rle
from triton_sam.errors import TooLarge
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.results import ResultFile

RESULTS_FILE = "results"
Ranges = list[tuple[int, int]]


class StoredResults:
    """Results by frame; a newer one replaces an older one. Threads may share it."""

    def __init__(self, folder: Path, size: tuple[int, int], most_bytes: int) -> None:
        """
        Args:
            size: (width, height) of the masks.
            most_bytes: of the file.
        """
        self._path = folder / RESULTS_FILE
        self._size, self._most = size, most_bytes
        self._lock = threading.Lock()
        self._file = ResultFile(self._path, size)
        self._empty = rle(np.zeros((size[1], size[0]), np.bool_))["counts"]
        #: Frame -> objects that are there. Neighbours share their tuples, so that long videos stay small.
        self._present: dict[int, tuple[int, ...]] = {}
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}
        #: Whether anything but prompted frames has a result.
        self.is_tracked = False

    @property
    def bytes(self) -> int:
        return self._path.stat().st_size

    def add(self, frame: VideoFrame, *, tracked: bool) -> None:
        """Keeps a frame's result; TooLarge if there are too many."""
        with self._lock:
            if self.bytes > self._most:
                self._rewrite(None)
                if self.bytes > self._most // 2:
                    raise TooLarge(
                        f"the masks of the video have more than {self._most // 2:,} bytes: export them, and track "
                        "fewer objects or frames"
                    )
            self._file.add(frame)
            self._note(frame)
            self.is_tracked = self.is_tracked or tracked

    def get(self, index: int) -> VideoFrame | None:
        """A frame's result; None if it has none."""
        with self._lock:
            return self._file.get(index)

    def forget_object(self, name: int) -> None:
        """Takes an object out of all frames."""
        with self._lock:
            self._rewrite(name)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = ResultFile(self._path, self._size)
            self._present.clear()
            self._known.clear()
            self.is_tracked = False

    def copy_to(self, path: Path) -> None:
        """A copy for another process, while results may still come."""
        with self._lock:
            shutil.copyfile(self._path, path)

    def frames(self) -> Ranges:
        """Ranges of frames with results, first and last included."""
        with self._lock:
            return ranges(sorted(self._present))

    def presence(self, objects: Iterable[int]) -> dict[int, Ranges]:
        """Ranges of frames in which each object has a mask with pixels."""
        with self._lock:
            known = sorted(self._present.items())
        return {name: ranges(index for index, there in known if name in there) for name in objects}

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _note(self, frame: VideoFrame) -> None:
        there = self._there(frame.objects)
        self._present[frame.index] = self._known.setdefault(there, there)

    def _there(self, objects: Mapping[int, FoundObject]) -> tuple[int, ...]:
        """Those with pixels."""
        return tuple(sorted(name for name, found in objects.items() if found.rle["counts"] != self._empty))

    def _rewrite(self, without: int | None) -> None:
        """Writes the newest result of each frame anew, without an object."""
        path = self._path.with_name(f"{RESULTS_FILE}.new")
        path.unlink(missing_ok=True)
        kept = []
        try:
            with contextlib.closing(ResultFile(path, self._size)) as newer:
                for frame in self._file:
                    objects = {name: found for name, found in frame.objects.items() if name != without}
                    if objects:
                        newer.add(VideoFrame(frame.index, frame.seconds, objects, frame.size))
                        kept.append((frame.index, self._there(objects)))
            path.replace(self._path)
        except BaseException:  # a full disk: all stays as it was
            path.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = ResultFile(self._path, self._size)
        self._present.clear()
        self._known.clear()
        for index, there in kept:
            self._present[index] = self._known.setdefault(there, there)
        self.is_tracked = self.is_tracked and bool(self._present)


def ranges(numbers: Iterable[int]) -> Ranges:
    """Ascending numbers -> [(first, last)] of those without a gap."""
    found: Ranges = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
