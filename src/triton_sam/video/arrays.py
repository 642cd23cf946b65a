"""Clips that are one array: [T,H,W] or [T,H,W,C], in memory or read part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.deep_pixels import Window, value_range, white_of, windowed
from triton_sam.core.images import file_bytes
from triton_sam.core.untrusted import check_pixels
from triton_sam.errors import InvalidInput
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits


class ArrayClip(Clip):
    """Frames of an array, sent as PNG, which loses nothing of 8 bits.

    One range holds for the whole clip if values have to be scaled, so that it does not flicker.
    """

    name = "the array"

    def __init__(self, array: Any, limits: ClipLimits | None = None) -> None:
        """
        Args:
            array: [T,H,W] grey, [T,H,W,1|3|4]; anything with ``shape``, ``dtype`` and an index, such as a Zarr array.
        """
        limits = limits or ClipLimits.of_settings()
        shape = tuple(int(side) for side in array.shape)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3, 4)):
            raise InvalidInput(f"a video array is [T,H,W] or [T,H,W,3], not {list(shape)}{_fix(shape)}")
        if 0 in shape:
            raise InvalidInput(f"the video array is empty (shape {list(shape)})")
        check_pixels(shape[2], shape[1], limits.pixels)
        self._array = array
        self.length = self.expected = shape[0]
        self.size = shape[2], shape[1]
        self._scaling: ClipScaling | None = None

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        assert self.length is not None
        end = self.length if last is None else min(last + 1, self.length)
        if self._scaling is None:
            scaling = ClipScaling()
            if np.dtype(self._array.dtype).kind in "uif" and self._array.dtype != np.uint8:
                for index in range(self.length):
                    scaling.see(np.asarray(self._array[index]), f"frame {index}")
            self._scaling = scaling
        for index in range(max(0, first), end):
            yield ClipFrame(index, self._scaling.png(np.asarray(self._array[index]), f"frame {index}"))


class ClipScaling:
    """Values of many frames to 8 bits, by one range for all that were seen."""

    def __init__(self) -> None:
        self._range: Window | None = None

    def see(self, frame: npt.NDArray[Any], where: str) -> None:
        """Widens the range by a frame's values."""
        try:
            low, high = value_range(frame)
        except InvalidInput as error:
            raise InvalidInput(f"{where} cannot be used: {error}") from None
        if self._range is not None:
            low, high = min(low, self._range[0]), max(high, self._range[1])
        self._range = low, high

    def png(self, frame: npt.NDArray[Any], where: str) -> bytes:
        """[H,W] or [H,W,1|3|4] -> a PNG file."""
        try:
            if self._range is not None and frame.size and (frame.ndim == 2 or frame.shape[2] != 4):
                frame = windowed(frame, white_of(frame.dtype, *self._range))
            return file_bytes(frame)
        except InvalidInput as error:
            raise InvalidInput(f"{where} cannot be used: {error}") from None


def _fix(shape: tuple[int, ...]) -> str:
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return ": if its second axis has the colours, send numpy.moveaxis(video, 1, 3)"
    return ": for one image send image[None]" if len(shape) == 2 else ""
