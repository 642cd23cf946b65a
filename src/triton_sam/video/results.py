"""Results of a video on the disk, frame by frame as they come; what a killed process leaves behind can be read."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_sam.errors import InvalidInput
from triton_sam.video.found import FoundObject, VideoFrame

#: The place of a frame without a result.
_NOWHERE = -1


class ResultFile:
    """One line of JSON for each frame, in any order of frames; of several for one frame, the last one counts.

    Only their places in the file are kept in memory.
    """

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        """Opens or makes the file; a last line that is not complete is cut off.

        Args:
            size: (width, height) of the masks.
        """
        self._path, self._size = path, size
        # Without a buffer: what a full disk has not taken must not be written later, at another frame's place.
        self._file = path.open("a+b", buffering=0)
        self._places: array[int] = array("q")
        self._lengths: array[int] = array("q")
        self._end = 0
        #: Number of frames with a result.
        self.known = 0
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the masks."""
        return self._size

    @property
    def count(self) -> int:
        """Frames from the first to the last one with a result."""
        return len(self._places)

    def add(self, frame: VideoFrame) -> None:
        """Writes a frame's result."""
        objects = {str(name): [one.rle["counts"], one.score, one.appearance] for name, one in frame.objects.items()}
        line = json.dumps({"frame": frame.index, "seconds": frame.seconds, "objects": objects}).encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._end)
            raise
        self._note(frame.index, len(line))

    def sync(self) -> None:
        """Waits until all of it is on the disk."""
        os.fsync(self._file.fileno())

    def get(self, index: int) -> VideoFrame | None:
        """A frame's result; None if it has none."""
        if not 0 <= index < len(self._places) or self._places[index] == _NOWHERE:
            return None
        content = json.loads(os.pread(self._file.fileno(), self._lengths[index], self._places[index]))
        if content["frame"] != index:
            raise InvalidInput(f"{self._path} is damaged: delete its folder to begin again")
        width, height = self._size
        objects = {
            int(name): FoundObject({"size": [height, width], "counts": counts}, score, appearance)
            for name, (counts, score, appearance) in content["objects"].items()
        }
        return VideoFrame(index, content["seconds"], objects, self._size)

    def __iter__(self) -> Iterator[VideoFrame]:
        """The results in the order of frames."""
        for index in range(len(self._places)):
            found = self.get(index)
            if found is not None:
                yield found

    def close(self) -> None:
        self._file.close()

    def _read(self) -> None:
        with self._path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    content: Any = json.loads(line)
                    self._note(int(content["frame"]), len(line))
                except (ValueError, LookupError, TypeError):
                    raise InvalidInput(f"{self._path} is damaged: delete its folder to begin again") from None
        self._file.truncate(self._end)

    def _note(self, index: int, length: int) -> None:
        """A line that was written at the end."""
        while len(self._places) <= index:
            self._places.append(_NOWHERE)
            self._lengths.append(0)
        self.known += self._places[index] == _NOWHERE
        self._places[index], self._lengths[index] = self._end, length
        self._end += length
