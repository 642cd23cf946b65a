"""Clips that are video files, read by PyAV, and streams of the same formats."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from triton_sam.errors import InvalidInput
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits, check_same_size
from triton_sam.video.containers import (
    CutShort,
    Damaged,
    Opened,
    check_stream_size,
    faults,
    frame_file,
    open_video,
    upright_picture,
    upright_size_of,
)
from triton_sam.video.live import LiveClip, Timed

log = logging.getLogger(__name__)

#: Looked at when a file is opened: whether a clip is shorter than this changes what a frame attends to.
_SHORT = 17
#: Frames from which on seeking is worth it, and how far before the wanted frame it aims: the first frames behind a
#: keyframe may need the ones before it.
_SEEK_FROM, _SEEK_MARGIN = 24, 16
_RECENT = 16
#: A file is cut short if so much of the time that it promises is missing: its times may be rounded.
_MISSING_SECONDS, _MISSING_SHARE = 0.5, 0.02


class FileClip(Clip):
    """A video file. Frames are numbered as they are shown, and sent as JPEG.

    Where a frame is in the file is known once it was decoded; what lies further on is decoded on the way to it.
    """

    def __init__(self, path: Path, limits: ClipLimits | None = None) -> None:
        self.name = str(path)
        self._path = path
        self._limits = limits or ClipLimits.of_settings()
        self._lock = threading.Lock()
        #: Presentation times of the frames that have been seen, from the first on, in the stream's units.
        self._times: list[int | None] = []
        self._can_seek = True
        self._raw_size: tuple[int, int] | None = None
        self._recent: OrderedDict[int, ClipFrame] = OrderedDict()
        self._notices: dict[str, str] = {}
        #: Where the last frame ends, in the stream's units; frames that the decoder has mended; whether the end fails.
        self._behind: int | None = None
        self._mended = 0
        self._is_cut = False
        opened = open_video(str(path), self.name, self._limits)
        try:
            self.rate, self.expected, self._ends = opened.rate, opened.expected, opened.ends
            self._unit = float(opened.stream.time_base or 0)
            for _, frame in islice(self._counted(opened), _SHORT):
                if self._raw_size is None:
                    self._raw_size = frame.width, frame.height
                    self.size = upright_size_of(frame)
        finally:
            opened.container.close()
        if self._raw_size is None:
            raise InvalidInput(
                f"there are no frames in {self.name}, or none that can be decoded: convert it to H.264 in MP4"
            )

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        opened = open_video(str(self._path), self.name, self._limits)
        try:
            for index, frame in self._from(opened, max(0, first)):
                if last is not None and index > last:
                    return
                yield self._sendable(index, frame)
                if index == last:
                    return
        finally:
            opened.container.close()

    def frame(self, index: int) -> ClipFrame:
        with self._lock:
            known = self._recent.get(index)
        if known is not None:
            return known
        found = super().frame(index)
        with self._lock:
            self._recent[index] = found
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return found

    def count(self) -> int:
        """As for every clip; frames are only decoded."""
        if self.length is None:
            opened = open_video(str(self._path), self.name, self._limits)
            try:
                for _ in self._from(opened, len(self._times)):
                    pass
            finally:
                opened.container.close()
        return super().count()

    @property
    def paths(self) -> list[Path]:
        return [self._path]

    @property
    def notices(self) -> list[str]:
        return list(self._notices.values())

    def _sendable(self, index: int, frame: Any) -> ClipFrame:
        check_same_size(f"frame {index} of {self.name}", (frame.width, frame.height), self._raw_size or (0, 0))
        start = self._times[0]
        seconds = None if frame.pts is None or start is None else (frame.pts - start) * self._unit
        return ClipFrame(index, frame_file(upright_picture(frame)), seconds)

    def _from(self, opened: Opened, first: int) -> Iterator[tuple[int, Any]]:
        """(index, decoded frame) from ``first`` on: behind the nearest known frame if the file can seek."""
        aim = min(first - _SEEK_MARGIN, len(self._times) - 1)
        if aim >= _SEEK_FROM and self._can_seek:
            found = self._sought(opened, aim)
            if found is not None:
                yield from ((index, frame) for index, frame in found if index >= first)
                return
            opened.container.close()
            opened = open_video(str(self._path), self.name, self._limits)
        try:
            yield from ((index, frame) for index, frame in self._counted(opened) if index >= first)
        finally:
            opened.container.close()

    def _sought(self, opened: Opened, aim: int) -> Iterator[tuple[int, Any]] | None:
        """Decoded frames with their indices, from frame ``aim`` on; None if the file does not lead there."""
        wanted = self._times[aim]
        try:
            opened.container.seek(wanted, stream=opened.stream)
            frames = opened.decoded()
            for frame in frames:
                if frame.pts is not None and frame.pts >= wanted:
                    if frame.pts != wanted:
                        break
                    return self._counted(opened, aim, frame, frames)
        except (Damaged, CutShort):
            pass
        except faults() as error:
            log.debug("%s cannot seek to frame %d: %s", self.name, aim, error)
        self._can_seek = False
        return None

    def _counted(
        self, opened: Opened, index: int = 0, frame: Any = None, frames: Iterator[Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Numbers decoded frames from ``index`` on, and notes their times; ``frame`` comes before ``frames``."""
        if frame is not None:
            yield index, frame
            index += 1
        try:
            for frame in opened.decoded() if frames is None else frames:
                self._note(index, frame)
                yield index, frame
                index += 1
        except Damaged as error:
            raise InvalidInput(f"frame {index} of {self.name} is damaged ({error}): repair or cut the file") from None
        except CutShort:
            self._is_cut = True
        self.length = self.expected = index
        self._judge_end()

    def _note(self, index: int, frame: Any) -> None:
        pts = frame.pts
        with self._lock:
            if index == len(self._times):
                last = self._times[-1] if self._times else None
                self._mended += bool(frame.is_corrupt)
                self._behind = None if pts is None else pts + (frame.duration or 0)
                if pts is None or (last is not None and pts <= last):
                    self._can_seek = False
                self._times.append(pts)

    def _judge_end(self) -> None:
        """Notes what is wrong with a file that was read to its end."""
        start, count = self._times[0] if self._times else None, len(self._times)
        missing = 0.0
        if self._ends is not None and self._behind is not None and start is not None:
            missing = self._ends - (self._behind - start) * self._unit
        if count and (self._is_cut or missing > max(_MISSING_SECONDS, _MISSING_SHARE * (self._ends or 0))):
            self._notices["end"] = f"{self.name} is cut short: {count} frames can be read"
        if self._mended:
            self._notices["mended"] = f"{self._mended} frames of {self.name} are damaged: the decoder has mended them"


def stream_clip(
    source: IO[bytes], name: str, limits: ClipLimits | None = None, *, close: Callable[[], None] = lambda: None
) -> LiveClip:
    """A clip of a pipe in any format that needs no seeking: Matroska, MPEG-TS, AVI, fragmented MP4, Y4M, MJPEG."""
    limits = limits or ClipLimits.of_settings()
    readable = _Readable(source)
    try:
        opened = open_video(readable, name, limits)  # type: ignore[arg-type]
    finally:
        readable.check()
    return LiveClip(_sent(opened, readable, limits), name, limits, rate=opened.rate, close=close)


class _Readable:
    """Only ``read``: PyAV would ask a pipe to seek.

    What is there is read at once: a buffer would wait until it is full, and its lock would hold up the process's end.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source  # it closes the raw file when it goes
        self._raw: Any = getattr(source, "raw", source)
        self._is_interrupted = False

    def read(self, size: int) -> bytes:
        if self._is_interrupted:
            return b""
        try:
            return self._raw.read(size) or b""
        except KeyboardInterrupt:  # PyAV would drop it and read on
            self._is_interrupted = True
            return b""

    def check(self) -> None:
        """KeyboardInterrupt if reading was interrupted by Ctrl-C."""
        if self._is_interrupted:
            raise KeyboardInterrupt


def _sent(opened: Opened, readable: _Readable, limits: ClipLimits) -> Iterator[Timed]:
    unit, start = float(opened.stream.time_base or 0), None
    index = 0
    try:
        for frame in opened.decoded():
            check_stream_size(frame.width, frame.height, opened.name, limits)
            readable.check()
            if start is None:
                start = frame.pts
            seconds = None if frame.pts is None or start is None else (frame.pts - start) * unit
            yield frame_file(upright_picture(frame)), seconds
            index += 1
    except Damaged as error:
        raise InvalidInput(f"frame {index} of {opened.name} is damaged ({error})") from None
    except CutShort:
        readable.check()
        log.warning("%s is cut short: %d frames could be read", opened.name, index)
    else:
        readable.check()
    finally:
        opened.container.close()
