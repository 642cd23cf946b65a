"""The bytes of an image that are sent to a server."""

from __future__ import annotations

import io
import os
from functools import lru_cache
from pathlib import Path

from triton_sam.batch.inputs.faults import fault_of_file
from triton_sam.batch.inputs.kinds import PICTURES, suffix_of
from triton_sam.batch.records import Item
from triton_sam.core import zarr_arrays
from triton_sam.core.file_bytes import FileBytes
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.core.pillow_pictures import PillowPicture
from triton_sam.core.tiff import TiffFile
from triton_sam.core.tiff_directories import is_tiff
from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput, JobStopped, SetupError

_NO_LIMIT = 2**62


def read_item(item: Item, choice: ImageChoice) -> bytes:
    """The file as it is, or a PNG of the page, plane, channel or window that is meant.

    Of a stack or an array only the page is read. Several threads may call it.

    Args:
        choice: channel and window; its page does not count.

    Raises:
        InvalidInput: the file has vanished, is damaged or is no image; other images are not concerned.
        JobStopped: the file's folder is gone, or its disk or network share does not respond.
    """
    channel = ImageChoice(channel=choice.channel, window=choice.window)
    try:
        data = _read(item.path, item.page, channel)
    except OSError as error:
        raise fault_of_file(error, item.path) from None
    except SetupError as error:  # on a worker that was installed differently; no image's fault
        raise JobStopped(str(error)) from None
    size_of(data)
    return data


def size_of(data: bytes) -> tuple[int, int]:
    """(width, height) of an image file, upright; no pixel is decoded.

    What the server can decode and this machine cannot is no error here: a TIFF's compression is not looked at.
    """
    if not data:
        raise InvalidInput("the image is empty: the file has 0 bytes")
    if is_tiff(data):
        return guarded(lambda: TiffFile(data, max_pixels=_NO_LIMIT).size)
    return guarded(lambda: PillowPicture(data, _NO_LIMIT).size)


def _read(path: Path, page: int | None, choice: ImageChoice) -> bytes:
    if suffix_of(path) not in PICTURES and path.is_dir():
        return _png_of_plane(path, page, choice)
    if page is None and choice.is_empty:
        return path.read_bytes()
    with path.open("rb") as file:
        if not is_tiff(file.read(4)):
            if page is not None:
                raise InvalidInput(f"{path} has no pages: it was a TIFF when the job began")
            file.seek(0)
            return chosen_bytes(file.read(), choice)
        facts = os.fstat(file.fileno())
    return _png_of_page((path, facts.st_size, facts.st_mtime_ns), page or 0, choice)


def _png_of_plane(folder: Path, plane: int | None, choice: ImageChoice) -> bytes:
    values = zarr_arrays.read_plane(folder, plane)
    if values.ndim == 3 and choice.channel is None and values.shape[2] not in (1, 3, 4):
        channels = values.shape[2]
        raise InvalidInput(f"{folder} has {channels} channels: choose one with --channel 0 to {channels - 1}")
    return chosen_bytes(values, choice)


_Stamp = tuple[Path, int, int]


def _png_of_page(stamp: _Stamp, page: int, choice: ImageChoice) -> bytes:
    file, planes = _opened(stamp)
    try:
        picture = planes.choose(page, choice.channel, choice.window)
    except InvalidInput:
        if file.failure is not None:
            _opened.cache_clear()  # after a share is back, the old file is still stale
            raise file.failure from None
        raise
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@lru_cache(maxsize=4)
def _opened(stamp: _Stamp) -> tuple[FileBytes, ImagePlanes]:
    """Kept for the next page: to find a page, the directories of all pages are read."""
    file = FileBytes(stamp[0])
    try:
        return file, ImagePlanes(file, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT)
    except InvalidInput:
        if file.failure is not None:
            raise file.failure from None
        raise
