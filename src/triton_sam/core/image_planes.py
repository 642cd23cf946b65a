"""The pages and channels of an image file, for people who choose among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.deep_pixels import Window
from triton_sam.core.picture_samples import Samples
from triton_sam.core.pillow_pictures import PillowPicture
from triton_sam.core.tiff import TiffFile
from triton_sam.core.tiff_decoder import check_decodable
from triton_sam.core.tiff_directories import FileData, is_tiff
from triton_sam.core.untrusted import check_size, guarded
from triton_sam.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Description:
    """What a file has, without its pixels."""

    format: str
    width: int
    height: int
    """Upright, of the first page."""
    pages: int
    channels: int
    channel_names: list[str] | None
    dtype: str
    bits: int


class ImagePlanes:
    """An image file whose planes can be read one by one."""

    def __init__(self, data: bytes | memoryview | FileData, *, max_bytes: int, max_pixels: int) -> None:
        if len(data) == 0:
            raise InvalidInput("the image is empty: send the bytes of an image file")
        check_size(len(data), max_bytes)
        self._tiff = guarded(lambda: TiffFile(data, max_pixels=max_pixels)) if is_tiff(data) else None
        self._picture = guarded(lambda: PillowPicture(_whole(data), max_pixels)) if self._tiff is None else None

    def describe(self) -> Description:
        """Pages, channels and depth; InvalidInput if the planes cannot be read."""
        return guarded(self._describe)

    @property
    def pages(self) -> int:
        tiff = self._tiff
        return 1 if tiff is None else guarded(lambda: tiff.stack.pages)

    def page(self, index: int) -> Samples:
        """[C,H,W] of one page, upright."""
        if self._tiff is not None:
            tiff = self._tiff
            return guarded(lambda: tiff.page(index))
        if index != 0:
            raise InvalidInput(f"the image has one page, and {index} is not 0")
        assert self._picture is not None
        return guarded(self._picture.samples)

    def choose(self, page: int, channel: int | None, window: Window | None) -> Image.Image:
        """What a model is given: RGB, or one channel as grey.

        Args:
            channel: default: the picture itself, if the file says that its channels are grey or colours.
            window: (low, high) in the file's own values; default: the rule of :func:`eight_bits`.
        """
        samples = self.page(page)
        if channel is None and samples.colours is None and samples.channels > 1:
            raise InvalidInput(
                f"the image has {samples.channels} channels: choose one with channel=0 to {samples.channels - 1}"
            )
        if channel is not None:
            return Image.fromarray(np.ascontiguousarray(samples.channel(channel, window)))
        return samples.rgb() if window is None else samples.windowed_rgb(window)

    def _describe(self) -> Description:
        if self._tiff is None:
            assert self._picture is not None
            return _description_of(self._picture)
        tiff = self._tiff
        check_decodable(tiff.first)
        names = tiff.channel_names
        width, height = tiff.size
        coloured = tiff.channels == 3 and tiff.first.samples != 3
        return Description(
            "TIFF",
            width,
            height,
            tiff.stack.pages,
            tiff.channels,
            None if names is None else list(names),
            "uint8" if coloured else str(tiff.first.dtype),
            8 if coloured else tiff.first.bits,
        )


def _whole(data: bytes | memoryview | FileData) -> bytes | memoryview:
    return data if isinstance(data, bytes | memoryview) else bytes(data)


def _description_of(picture: PillowPicture) -> Description:
    names = {1: None, 3: ["red", "green", "blue"], 4: ["red", "green", "blue", "alpha"]}[picture.channels]
    dtype = picture.dtype
    bits = picture.bits if picture.bits > 8 else 8 * dtype.itemsize
    return Description(picture.format, *picture.size, 1, picture.channels, names, str(dtype), bits)


def read_pages(planes: ImagePlanes, first: int, count: int, *, max_bytes: int) -> list[npt.NDArray[Any]]:
    """[C,H,W] of each page of [first, first + count) that the file has; all have one shape and one dtype.

    Args:
        max_bytes: of all pages together, as they are in memory; at least one page is returned.
    """
    pages = planes.pages
    if not 0 <= first < pages:
        raise InvalidInput(f"the file has {pages} page(s), and first={first} is none of 0 to {pages - 1}")
    found: list[npt.NDArray[Any]] = []
    for index in range(first, min(first + count, pages)):
        values = planes.page(index).shown_values()
        if found and (values.shape, values.dtype) != (found[0].shape, found[0].dtype):
            raise InvalidInput(
                f"page {index} has {_shape(values)} and page {first} {_shape(found[0])}: ask for them one by one"
            )
        found.append(values)
        if (len(found) + 1) * values.nbytes > max_bytes:
            break
    return found


def _shape(values: npt.NDArray[Any]) -> str:
    channels, height, width = values.shape
    return f"{channels} channel(s) of {width} x {height} {values.dtype}"
