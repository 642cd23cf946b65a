"""What a user may give as a video, as a clip."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from triton_sam.errors import InvalidInput
from triton_sam.video.arrays import ArrayClip
from triton_sam.video.clip import Clip, ClipLimits
from triton_sam.video.files import FileClip, stream_clip
from triton_sam.video.lists import ListClip, folder_clip
from triton_sam.video.live import iterator_clip
from triton_sam.video.pages import pages_clip

#: A path of a file or folder, ``-`` for standard input, an array, a list of frames or an iterator of frames.
VideoLike = str | PathLike[str] | Sequence[Any] | Iterable[Any]


def open_clip(video: Any, limits: ClipLimits | None = None) -> Clip:
    """Opens what a user gives as a video.

    Args:
        video: a video file (PyAV), a folder of images, ``-`` for a stream on standard input, an array [T,H,W] or
            [T,H,W,3], a list of images, or an iterator of images, which may be without an end. An image is a path, the
            bytes of an image file, an array or a Pillow image.
    """
    if isinstance(video, Clip):
        return video
    if isinstance(video, str) and video == "-":
        return stream_clip(sys.stdin.buffer, "the stream on standard input", limits)
    if isinstance(video, str | PathLike):
        return _of_path(Path(video).expanduser(), limits)
    if hasattr(video, "shape") and hasattr(video, "dtype"):
        return ArrayClip(video, limits)
    if isinstance(video, bytes | bytearray | memoryview):
        raise InvalidInput("a video is a path, an array or an iterator of frames, not bytes: write them into a file")
    if isinstance(video, Sequence):
        return ListClip(video, "the list of frames", limits)
    if isinstance(video, Iterable):
        return iterator_clip(video, limits)
    raise InvalidInput(
        "a video is a file, a folder of images, an array [T,H,W,3] or an iterator of frames, "
        f"not {type(video).__name__}"
    )


def _of_path(path: Path, limits: ClipLimits | None) -> Clip:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the video {str(path)!r} cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        return folder_clip(path, limits)
    if stat.S_ISREG(mode):
        return _file_clip(path, limits)
    if stat.S_ISFIFO(mode):
        source = path.open("rb", buffering=0)
        try:
            return stream_clip(source, str(path), limits, close=source.close)
        except BaseException:
            source.close()
            raise
    raise InvalidInput(f"{path} is neither a file nor a folder: give a video file or a folder of images")


def _file_clip(path: Path, limits: ClipLimits | None) -> Clip:
    try:
        pages = pages_clip(path, limits)
    except OSError as error:
        raise InvalidInput(f"the video {str(path)!r} cannot be read: {error.strerror or error}") from None
    return pages or FileClip(path, limits)
