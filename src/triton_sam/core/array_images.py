"""Arrays as images: what is clear is taken as a file of the same values is, everything else gets a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.deep_pixels import eight_bits
from triton_sam.errors import InvalidInput

_FORM = "an image array is [H,W] or [H,W,3|4]"


def picture_of_array(array: npt.NDArray[Any]) -> Image.Image:
    """An array -> a picture of 8 bits, or of 16 bits grey.

    Args:
        array: [H,W] or [H,W,1] grey, [H,W,3] RGB, [H,W,4] RGBA; bool, integers or floats.
            8 bits are taken as they are. Other integers from 0 to 65535 are scaled by the smallest bit depth that
            holds the brightest pixel; floats from 0 to 1 have white at 1, floats from 0 to 255 at 255; any other range
            is stretched. The fourth channel, transparency, has the range of its type: 0 to 255, to 65535 or to 1.
    """
    if array.size == 0:
        raise InvalidInput(f"the image array is empty (shape {list(array.shape)})")
    if array.dtype.kind not in "buif":
        raise InvalidInput(f"{_FORM} of numbers, not {array.dtype} {list(array.shape)}{_conversion(array)}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in (3, 4)):
        raise InvalidInput(f"{_FORM}, not {list(array.shape)}: {_shape_fix(array.shape)}")
    if array.dtype == np.uint8 or (array.dtype == np.uint16 and array.ndim == 2):
        return Image.fromarray(np.ascontiguousarray(array))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(
            "the image array has values that are not finite (NaN or infinite): replace them, "
            "for example with numpy.nan_to_num(image, posinf=0, neginf=0)"
        )
    if array.ndim == 3 and array.shape[2] == 4 and array.dtype != np.bool_:
        return Image.fromarray(np.dstack([eight_bits(array[:, :, :3]), _opacity(array)]))
    return Image.fromarray(np.ascontiguousarray(eight_bits(array)))


def _opacity(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """[H,W,4] -> [H,W] uint8 of the last channel."""
    alpha = array[:, :, 3]
    low, high = float(alpha.min()), float(alpha.max())
    top = 1.0 if array.dtype.kind == "f" else float(np.iinfo(array.dtype).max)
    if array.dtype.kind != "f" and high <= 255 and float(array[:, :, :3].max()) <= 255:
        top = 255.0
    if low < 0 or high > top:
        raise InvalidInput(
            f"the fourth channel of the image array, its transparency, goes from {low:g} to {high:g} and not from 0 to "
            f"{top:g}: send image[:, :, :3], or scale it"
        )
    return (alpha.astype(np.float64) * (255 / top) + 0.5).astype(np.uint8)


def _shape_fix(shape: tuple[int, ...]) -> str:
    """What to call on an array of this shape."""
    if len(shape) == 3 and shape[0] in (3, 4):
        return "if its first axis has the colours, send numpy.moveaxis(image, 0, 2)"
    if len(shape) == 3 and shape[0] == 1:
        return "send image[0]"
    if len(shape) == 3 and min(shape[0], shape[2]) == 2:
        axis = "image[:, :, 0]" if shape[2] == 2 else "image[0]"
        return f"choose one of its 2 channels, for example {axis}"
    if len(shape) == 3:
        return "choose one plane of it, for example image[0]" if shape[0] <= shape[2] else "choose one, image[:, :, 0]"
    if len(shape) == 4:
        return "send one image at a time, for example image[0]"
    return "reshape it to [H,W] first"


def _conversion(array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "c":
        return ": send numpy.abs(image)"
    return ": convert it first, for example numpy.asarray(image, dtype='float32')"
