"""Clips whose frames come once: an iterator, a camera, a pipe. Only the newest are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput
from triton_sam.video.arrays import ClipScaling
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits, check_same_size, upright_size

#: Of the frames that are kept for corrections.
KEPT_FRAMES, KEPT_BYTES = 64, 128 * 2**20
#: So many are kept whatever their size: frames are read ahead of the one whose overlay is drawn.
FEWEST_KEPT = 16
#: An image file, and its time.
Timed = tuple[bytes, float | None]


class LiveClip(Clip):
    """Frames of an iterator, with or without an end. It is read on whichever thread asks for the next frame."""

    is_live = True

    def __init__(
        self,
        source: Iterator[Timed],
        name: str,
        limits: ClipLimits | None = None,
        *,
        rate: float | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits for the first frame, which tells the size."""
        self.name, self.rate = name, rate
        self._source = source
        self._limits = limits or ClipLimits.of_settings()
        self._kept: deque[ClipFrame] = deque()
        self._kept_bytes = 0
        self._come = 0
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._close = close
        if not self._read_until(0):
            raise InvalidInput(f"there are no frames in {name}")

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        index = max(0, first)
        while (last is None or index <= last) and self._read_until(index):
            yield self._find(index)
            index += 1

    def close(self) -> None:
        self._close()

    def _read_until(self, index: int) -> bool:
        """Whether frame ``index`` has come; reads until it does."""
        if index < self._come:
            return True
        with self._reading:  # not the other lock: whoever wants an earlier frame need not wait for the next one
            while self._come <= index:
                if self._failure is not None:  # an iterator that has failed would only say that it has ended
                    raise self._failure
                try:
                    if not self._read():
                        return False
                except Exception as error:
                    self._failure = error
                    raise
        return True

    def _read(self) -> bool:
        try:
            data, seconds = next(self._source)
        except StopIteration:
            self.length = self.expected = self._come
            return False
        where = f"frame {self._come}"
        size = upright_size(data, self._limits, where)
        if not self._come:
            self.size = size
        check_same_size(where, size, self.size)
        self._keep(ClipFrame(self._come, data, seconds))
        return True

    def _keep(self, frame: ClipFrame) -> None:
        with self._lock:
            self._kept.append(frame)
            self._kept_bytes += len(frame.data)
            while len(self._kept) > KEPT_FRAMES or (self._kept_bytes > KEPT_BYTES and len(self._kept) > FEWEST_KEPT):
                self._kept_bytes -= len(self._kept.popleft().data)
            self._come += 1

    def _find(self, index: int) -> ClipFrame:
        with self._lock:
            oldest = self._kept[0].index
            if index < oldest:
                raise InvalidInput(
                    f"frame {index} of {self.name} is gone: it can be read only once, and frames from {oldest} on are "
                    "kept; save the video as a file to go back further"
                )
            return self._kept[index - oldest]


def iterator_clip(frames: Iterable[Any], limits: ClipLimits | None = None) -> LiveClip:
    """A clip of arrays, Pillow images, paths or bytes of image files, as they come."""
    return LiveClip(_files(iter(frames)), "the iterator of frames", limits)


def _files(frames: Iterator[Any]) -> Iterator[Timed]:
    scaling = ClipScaling()
    for index, frame in enumerate(frames):
        where = f"frame {index}"
        if hasattr(frame, "__array__") and hasattr(frame, "dtype"):  # also of other libraries
            array = np.asarray(frame)
            if array.dtype.kind in "uif" and array.dtype != np.uint8 and array.size:
                scaling.see(array, where)
            yield scaling.png(array, where), None
            continue
        try:
            data = file_bytes(frame)
        except InvalidInput as error:
            raise InvalidInput(f"{where} cannot be used: {error}") from None
        yield data, None
