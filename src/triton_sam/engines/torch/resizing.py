"""Resizes pictures to the encoder's input on the device, as Pillow does on the host, and normalises them."""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.models.architecture import Architecture
from triton_sam.networks.segmenters import normalisation

_kernel: ModuleType | None
try:
    from triton_sam.engines.torch import resize_kernel as _kernel
except ImportError:  # triton comes with torch for GPUs only
    _kernel = None
log = logging.getLogger(__name__)

#: Test pictures for the kernel: a photograph's shape, either axis first, larger, padded, and as it is.
_TRIED = (
    Frame(384, 256, 256, ResizePolicy.SQUASH),
    Frame(97, 1031, 256, ResizePolicy.SQUASH),
    Frame(150, 200, 256, ResizePolicy.PAD),
    Frame(256, 256, 256, ResizePolicy.SQUASH),
)
#: Share of values that may differ there: rounding may decide about one that lies between two numbers.
_FEW = 1e-3


def normal_of(architecture: Architecture, device: torch.device) -> Tensor:
    """[2,3] float32: what colours in 0..255 are multiplied by, and what is subtracted then."""
    mean, std = normalisation(architecture)
    return torch.stack((1 / (255 * std), mean / std)).view(2, 3).to(device)


def kernel_resizes(normal: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel runs on the device of ``normal``, and gives the same as torch's operators. Compiles it."""
    if _kernel is None:
        return False
    try:
        with torch.inference_mode():
            for frame in _TRIED:
                _try(frame, normal, dtype)
        return True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # triton and the compilers that it calls raise many different ones
        log.warning("pictures are resized without their kernel, and slower: %s", str(error).partition("\n")[0])
        return False


def _try(frame: Frame, normal: Tensor, dtype: torch.dtype) -> None:
    """Compares both ways with a picture that lies as Pillow's do; ValueError if they differ."""
    squares = torch.arange(frame.height * frame.width * 3, device=normal.device) ** 2 % 256
    picture = squares.to(torch.uint8).view(frame.height, frame.width, 3).permute(2, 0, 1)
    given = resized_by_kernel(picture, frame, normal, dtype)
    expected = resized(picture, frame, normal, dtype)
    if given is None:
        raise ValueError(f"the kernel refuses {frame.width} x {frame.height} pixels")
    off = (given.float() - expected.float()).abs()
    # One step, and the rounding of values of up to 4.
    limit = 1.1 * normal[0, :, None, None] + 4 * torch.finfo(dtype).eps
    share, far = float((off > 0).float().mean()), int((off > limit).sum())
    if share > _FEW or far:
        raise ValueError(f"{100 * share:.2f} % of {frame.width} x {frame.height} pixels differ, {far} of them by much")


def resized_by_kernel(picture: Tensor, frame: Frame, normal: Tensor, dtype: torch.dtype) -> Tensor | None:
    """:func:`resized` in one launch, see :func:`kernel_resizes`; None if the kernel does not support the picture."""
    width, height = frame.resized
    if _kernel is None or not _kernel.can_resize(picture, height, width):
        return None
    first = _rows_first(picture, frame)
    found: Tensor = _kernel.resize(picture, height, width, frame.side, normal, dtype, rows_first=first)
    return found


def resized(picture: Tensor, frame: Frame, normal: Tensor, dtype: torch.dtype) -> Tensor:
    """[3,H,W] uint8 -> [3,side,side], normalised; padding is zero. See :func:`normal_of`."""
    width, height = frame.resized
    pixels = picture[None].float()
    if picture.shape[1:] != (height, width):
        # One axis after the other, rounded after each: the same pixels as Pillow, which the references and the
        # other engines use. Small objects change with a difference of one in 255.
        first = (height, picture.shape[2]) if _rows_first(picture, frame) else (picture.shape[1], width)
        for size in (first, (height, width)):
            pixels = (functional.interpolate(pixels, size, mode="bilinear", antialias=True) + 0.5).floor()
    scale, shift = normal[..., None, None]
    pixels = pixels[0] * scale - shift
    if (height, width) != (frame.side, frame.side):
        pixels = functional.pad(pixels, (0, frame.side - width, 0, frame.side - height))
    return pixels.to(dtype)


def _rows_first(picture: Tensor, frame: Frame) -> bool:
    """Pillow starts with the vertical axis if that shrinks much more."""
    width, height = frame.resized
    return bool(picture.shape[1] > max(height, 1.1 * height * picture.shape[2] / width))
