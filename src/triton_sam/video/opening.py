"""What a user may give as a video, as a clip."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.core.tiff_directories import MAGIC
from triton_sam.core.zarr_arrays import description_of
from triton_sam.errors import InvalidInput
from triton_sam.video.arrays import ArrayClip
from triton_sam.video.clip import Clip, ClipLimits
from triton_sam.video.files import FileClip, stream_clip
from triton_sam.video.lists import ListClip, folder_clip
from triton_sam.video.live import iterator_clip
from triton_sam.video.pages import pages_clip
from triton_sam.video.stacks.choice import StackChoice
from triton_sam.video.stacks.files_source import FilesSource, is_deep
from triton_sam.video.stacks.sources import ArraySource
from triton_sam.video.stacks.stack_clip import StackClip
from triton_sam.video.stacks.tiff_source import TiffSource
from triton_sam.video.stacks.zarr_source import zarr_source

_ZIP = b"PK\x03\x04"
#: A path of a file or folder, ``-`` for standard input, an array, a list of frames or an iterator of frames.
VideoLike = str | PathLike[str] | Sequence[Any] | Iterable[Any]


def open_clip(
    video: Any,
    limits: ClipLimits | None = None,
    *,
    axis: Any = None,
    at: Any = None,
    contrast: Any = None,
    axes: Any = None,
) -> Clip:
    """Opens what a user gives as a video.

    Args:
        video: a video file (PyAV), a folder of images, ``-`` for a stream on standard input, an array [T,H,W] or
            [T,H,W,3], a list of images, or an iterator of images, which may be without an end. An image is a path, the
            bytes of an image file, an array or a Pillow image. Or a stack: a TIFF, the folder of a Zarr array or
            OME-Zarr, or an array whose dimensions are named, here or by itself.
        axis: ``t`` or ``z``: what frames run along; slices (z) are tracked both ways. Default: as a stack says, else t.
        at: of a stack: dimension -> the index at which it is held, such as ``{"c": 1, "t": 0}``.
        contrast: of a stack: (low, high), the values that become black and white.
        axes: of a stack: a letter for each dimension, such as ``TZCYX``, where the file does not name them.
    """
    choice = StackChoice.of(axis, at, contrast, axes)
    if isinstance(video, Clip):
        if choice != StackChoice():
            raise InvalidInput("the clip is open already: give axis, at, contrast and axes when it is opened")
        return video
    if isinstance(video, str | PathLike) and video != "-":
        clip = _of_path(Path(video).expanduser(), limits, choice)
    elif hasattr(video, "shape") and hasattr(video, "dtype"):
        clip = _of_array(video, limits, choice)
    else:
        clip = _of_frames(video, limits)
    if not isinstance(clip, StackClip):
        if choice.is_for_stacks_only:
            raise InvalidInput(
                f"{clip.name} is no stack: at, contrast and axes are for TIFF and Zarr stacks and arrays"
            )
        clip.axis = choice.axis or clip.axis
    return clip


def _of_array(array: Any, limits: ClipLimits | None, choice: StackChoice) -> Clip:
    is_lazy = not isinstance(array, np.ndarray) and hasattr(array, "chunks")
    if is_lazy or choice != StackChoice():
        return StackClip(ArraySource(array, ArrayClip.name), choice, limits)
    return ArrayClip(array, limits)


def _of_frames(video: Any, limits: ClipLimits | None) -> Clip:
    if isinstance(video, str | PathLike):
        return stream_clip(sys.stdin.buffer, "the stream on standard input", limits)
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


def _of_path(path: Path, limits: ClipLimits | None, choice: StackChoice) -> Clip:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the video {str(path)!r} cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        is_zarr = path.suffix.lower() == ".zarr" or description_of(path) is not None
        return StackClip(zarr_source(path), choice, limits) if is_zarr else _of_folder(path, limits, choice)
    if stat.S_ISREG(mode):
        return _file_clip(path, limits, choice)
    if stat.S_ISFIFO(mode):
        source = path.open("rb", buffering=0)
        try:
            return stream_clip(source, str(path), limits, close=source.close)
        except BaseException:
            source.close()
            raise
    raise InvalidInput(f"{path} is neither a file nor a folder: give a video file or a folder of images")


def _of_folder(path: Path, limits: ClipLimits | None, choice: StackChoice) -> Clip:
    """Images are sent as they are, unless one contrast has to hold for all of them."""
    clip = folder_clip(path, limits)
    if choice.is_for_stacks_only or is_deep(clip):
        return StackClip(FilesSource(clip, choice.axis or "t"), choice, limits)
    return clip


def _file_clip(path: Path, limits: ClipLimits | None, choice: StackChoice) -> Clip:
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == _ZIP and ".zarr" in path.suffixes:
            raise InvalidInput(f"{path} is a zipped Zarr store: unpack it, and give its folder")
        if head in MAGIC:
            return StackClip(TiffSource(path, (limits or ClipLimits.of_settings()).pixels), choice, limits)
        pages = pages_clip(path, limits)
    except OSError as error:
        raise InvalidInput(f"the video {str(path)!r} cannot be read: {error.strerror or error}") from None
    return pages or FileClip(path, limits)
