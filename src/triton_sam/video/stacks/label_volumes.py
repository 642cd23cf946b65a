"""Label volumes: the numbers of the objects in every voxel of a stack, as TIFF or Zarr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.core.everything.labels import label_type
from triton_sam.core.rle import rle
from triton_sam.errors import InvalidInput
from triton_sam.video.clip import Clip
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.label_frames import LabelFolder
from triton_sam.video.stacks.label_tiff import tiff_labels
from triton_sam.video.stacks.label_zarr import check_zarr_target, zarr_labels
from triton_sam.video.stacks.scale import VolumeForm

#: Suffixes of label volumes.
TIFFS, ZARRS = (".tif", ".tiff", ".btf", ".tf8"), (".zarr",)
#: Writes what was found in the next frame; None for nothing.
PutFrame = Callable[[VideoFrame | None], None]


def is_label_volume(path: Path) -> bool:
    """Whether the name is one of a label volume."""
    return path.suffix.lower() in (*TIFFS, *ZARRS)


def check_label_volume(path: Path, objects: Sequence[int]) -> None:
    """InvalidInput if it cannot be written, SetupError if a package is missing; before anything is computed."""
    LabelFolder.check(list(objects))
    if not is_label_volume(path):
        raise InvalidInput(f"a label volume is .tif, .tiff or .zarr, not {path.name}")
    if path.suffix.lower() in ZARRS:
        check_zarr_target(path)
    elif path.is_dir():
        raise InvalidInput(f"{path} is a folder, and a label volume would have its name: give another one")


@contextmanager
def label_volume(
    path: Path, form: VolumeForm, frames: int, size: tuple[int, int], objects: Sequence[int]
) -> Iterator[PutFrame]:
    """A function that takes each frame in order, and is called ``frames`` times.

    The volume [frames,H,W] is there when the context ends without an error, else nothing is. A voxel's value is the
    number of its object, 0 for none; where objects overlap, the smaller one is on top. It has 8 bits if all objects
    have numbers up to 255, else 16. One frame is in memory at a time.

    Args:
        form: of the clip that was tracked: its ``form``.
        size: (width, height) of the frames.
        objects: all numbers that occur.
    """
    check_label_volume(path, objects)
    width, height = size
    shape, largest = (frames, height, width), max(objects, default=0)
    dtype: np.dtype[Any] = np.dtype(label_type(largest))
    values = {name: name for name in objects}
    is_zarr = path.suffix.lower() in ZARRS
    written = 0
    opened = zarr_labels(path, form, shape, dtype) if is_zarr else tiff_labels(path, form, shape, dtype, largest)
    with opened as add:

        def put(frame: VideoFrame | None) -> None:
            nonlocal written
            written += 1
            add(np.zeros((height, width), dtype) if frame is None else frame.labels(values))

        yield put
        if written != frames:
            raise InvalidInput(f"the label volume {path} was promised {frames} frames and got {written}")


def save_labels(path: str | PathLike[str], video: Any, frames: Iterable[Any]) -> Path:
    """Writes what a client found in a stack or video as a label volume: see :func:`label_volume`.

    Args:
        path: ``*.tif`` or ``*.zarr``.
        video: the state of ``init_state``, or a clip.
        frames: what ``track_frames`` or ``propagate_in_video`` yield, in any order; of two of a frame the last one
            counts. Frames that are not among them have no objects.
    """
    clip: Clip = getattr(video, "clip", video)
    found = {frame.index: frame for frame in (_frame_of(each, clip) for each in frames)}
    objects = sorted({name for frame in found.values() for name in frame.objects})
    target = Path(path).expanduser()
    with label_volume(target, clip.form, clip.count(), clip.size, objects) as put:
        for index in range(clip.count()):
            put(found.get(index))
    return target


def _frame_of(found: Any, clip: Clip) -> VideoFrame:
    if isinstance(found, VideoFrame):
        return found
    try:
        index, obj_ids, masks = found
        objects: Mapping[int, FoundObject] = {
            int(name): FoundObject(rle(np.ascontiguousarray(np.asarray(mask)[0] > 0)), 1.0, 1.0)
            for name, mask in zip(obj_ids, masks, strict=True)
        }
    except (TypeError, ValueError, LookupError):
        raise InvalidInput(
            "frames are what track_frames or propagate_in_video yield: VideoFrame, or (frame_idx, obj_ids, masks)"
        ) from None
    return VideoFrame(int(index), None, objects, clip.size)
