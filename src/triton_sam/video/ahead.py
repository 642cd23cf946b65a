"""Frames read, decoded and encoded on a thread, ahead of whoever sends them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum

from triton_sam.video.clip import Clip, ClipFrame

#: Bytes of a chunk of frames that are walked backward: files can only be decoded forward.
_CHUNK_BYTES, _LARGEST_CHUNK = 64 * 2**20, 32
_JOIN_SECONDS = 10.0


class NotYet(Enum):
    """The next frame is not there yet."""

    NOT_YET = 0


class FramesAhead:
    """The frames of a walk through a clip, in the order in which they are tracked."""

    def __init__(self, clip: Clip, first: int, last: int | None, *, reverse: bool = False, depth: int = 6) -> None:
        """
        Args:
            last: the last frame of the walk, before ``first`` if it goes backward; None: the end of the clip.
            depth: frames that wait at most.
        """
        self._clip = clip
        self._frames = _backward(clip, first, last or 0) if reverse else clip.frames(first, last)
        self._depth = depth
        self._ready: deque[ClipFrame] = deque()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="triton-sam-frames", daemon=True)
        self._thread.start()

    def get(self, *, wait: bool = True) -> ClipFrame | NotYet | None:
        """The next frame; None at the end; NOT_YET if there is none without ``wait``. Raises what reading raised."""
        with self._changed:
            while not self._ready and not self._ended and not self._closed:
                if not wait:
                    return NotYet.NOT_YET
                self._changed.wait()
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def close(self) -> None:
        """Ends the walk. A live clip may still wait for its next frame, which it keeps."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if not self._clip.is_live:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            for frame in self._frames:
                with self._changed:
                    self._ready.append(frame)
                    self._changed.notify_all()
                    while len(self._ready) >= self._depth and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
        except BaseException as error:
            self._failure = error
        finally:
            if hasattr(self._frames, "close"):
                self._frames.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()


def _backward(clip: Clip, first: int, last: int) -> Iterator[ClipFrame]:
    """Frames from ``first`` down to ``last``, read in chunks that are turned around."""
    chunk, index = 4, first
    while index >= last:
        low = max(last, index - chunk + 1)
        frames = list(clip.frames(low, index))
        yield from reversed(frames)
        size = max((len(frame.data) for frame in frames), default=1)
        chunk = max(1, min(_LARGEST_CHUNK, _CHUNK_BYTES // max(1, size)))
        index = low - 1
