"""Runs image decoders on untrusted bytes: whatever they raise becomes one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from triton_sam.errors import InvalidInput, TooLarge, TritonSamError

_T = TypeVar("_T")


def guarded(action: Callable[[], _T]) -> _T:
    """Runs a decoder's call, and turns any exception into one of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse an image
            return action()
    except TritonSamError:
        raise
    except UnidentifiedImageError:
        raise InvalidInput("the image format is unknown: send a PNG, JPEG, TIFF, WebP, BMP or GIF file") from None
    except Image.DecompressionBombError:
        raise TooLarge("the image has far more pixels than allowed: send a smaller one") from None
    except MemoryError:
        raise InvalidInput("the image needs more memory than the server has: send a smaller one") from None
    except Exception as error:  # decoders raise nearly every built-in exception on damaged files
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"the image is damaged or cut short ({reason}): send it again") from None


def check_size(size: int, max_bytes: int) -> None:
    """Raises TooLarge for a file that is too large, before it is copied or decoded."""
    if size > max_bytes:
        raise TooLarge(f"the image has {size:,} bytes and {max_bytes:,} are allowed: send a smaller one")


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Raises TooLarge for an image that is too large, before a pixel is decoded."""
    if width * height > max_pixels:
        raise TooLarge(
            f"the image has {width} x {height} = {width * height:,} pixels and {max_pixels:,} are allowed: "
            "send a smaller one or tiles of it"
        )
