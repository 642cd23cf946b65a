"""A page, a channel or a contrast window of an image, chosen by the client and sent as PNG."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from triton_sam.core.array_images import picture_of_array
from triton_sam.core.deep_pixels import Window, windowed
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.errors import InvalidInput

#: The server has limits; a client reads its own files whatever their size.
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """What of a file is meant; everything left out is as the file says."""

    page: int | None = None
    """From 0 on."""
    channel: int | None = None
    """From 0 on; it is shown as grey."""
    window: Window | None = None
    """(low, high) in the image's own values: low becomes black and high white."""

    def __post_init__(self) -> None:
        for name, value in (("page", self.page), ("channel", self.channel)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0):
                raise InvalidInput(f"{name} must be a whole number from 0 on, not {value!r}")
        if self.window is not None:
            object.__setattr__(self, "window", _checked(self.window))

    @property
    def is_empty(self) -> bool:
        return self.page is None and self.channel is None and self.window is None


def chosen_bytes(image: Any, choice: ImageChoice) -> bytes:
    """The bytes that a client sends: as :func:`file_bytes`, or a PNG of the chosen part.

    Args:
        image: as in :func:`file_bytes`; of an array the channel is [:, :, channel], and it has no pages.
    """
    if choice.is_empty:
        return file_bytes(image)
    picture = _of_array(image, choice) if isinstance(image, np.ndarray) else _of_file(file_bytes(image), choice)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def picture_for_model(image: Any, choice: ImageChoice) -> Image.Image:
    """What the model is given, mode RGB."""
    return EncodedImage(chosen_bytes(image, choice), max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).pixels()


def _of_file(data: bytes, choice: ImageChoice) -> Image.Image:
    planes = ImagePlanes(data, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT)
    return planes.choose(choice.page or 0, choice.channel, choice.window)


def _of_array(array: Any, choice: ImageChoice) -> Image.Image:
    if choice.page is not None:
        raise InvalidInput("an array has no pages: give the page itself, for example image[0]")
    if choice.channel is not None:
        if array.ndim != 3 or choice.channel >= array.shape[2]:
            raise InvalidInput(f"an array {list(array.shape)} has no channel {choice.channel}: [H,W,C] has 0 to C-1")
        array = array[:, :, choice.channel]
    if choice.window is None:
        return picture_of_array(array)
    picture_of_array(array)  # refuses what is no image
    colours = array[:, :, :3] if array.ndim == 3 else array
    return picture_of_array(windowed(colours, choice.window))


def _checked(window: Any) -> Window:
    try:
        low, high = (float(value) for value in window)
    except (TypeError, ValueError):
        raise InvalidInput(f"window must be (low, high), two numbers, not {window!r}") from None
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InvalidInput(f"window must be (low, high) with low below high, not ({low:g}, {high:g})")
    return low, high
