"""Reads image files into the encoder's input: decodes JPEGs on the GPU if it can, resizes and normalises there."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import normalisation

log = logging.getLogger(__name__)


class PictureReader:
    """Reads images for one model. Its methods may run on several threads at a time, each with its own stream."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype, *, gpu_jpeg: bool = True) -> None:
        self._spec = spec
        self._device = device
        self._dtype = dtype
        mean, std = (value.to(device) for value in normalisation(spec.architecture))
        self._scale, self._shift = 1 / (255 * std), mean / std
        # The GPU upsamples the colour of most JPEGs by repeating it, Pillow by blending: some masks differ visibly.
        self._decode_jpeg = gpu_jpeg_decoder(device) if gpu_jpeg else None

    def read(self, image: EncodedImage) -> tuple[Frame, Tensor]:
        """A file -> its geometry and [3,side,side], normalised, on the device."""
        picture = self._picture(image)
        frame = Frame(picture.shape[2], picture.shape[1], self._spec.side, self._spec.resize)
        return frame, self.fit(picture, frame)

    def fit(self, picture: Tensor, frame: Frame) -> Tensor:
        """[3,H,W] uint8 on the device -> [3,side,side], normalised; padding is zero."""
        width, height = frame.resized
        pixels = picture[None].float()
        if picture.shape[1:] != (height, width):
            # One axis after the other, rounded after each: the same pixels as Pillow, which the references and the
            # other engines use. Small objects change with a difference of one in 255. Pillow starts with the vertical
            # axis if that shrinks much more.
            rows_first = picture.shape[1] > max(height, 1.1 * height * picture.shape[2] / width)
            first = (height, picture.shape[2]) if rows_first else (picture.shape[1], width)
            for size in (first, (height, width)):
                pixels = (functional.interpolate(pixels, size, mode="bilinear", antialias=True) + 0.5).floor()
        pixels = pixels[0] * self._scale - self._shift
        if (height, width) != (frame.side, frame.side):
            pixels = functional.pad(pixels, (0, frame.side - width, 0, frame.side - height))
        return pixels.to(self._dtype)

    def _picture(self, image: EncodedImage) -> Tensor:
        """[3,H,W] uint8 on the device."""
        if self._decode_jpeg is not None and image.is_plain_jpeg:
            try:
                picture: Tensor = self._decode_jpeg(image.data)
                if tuple(picture.shape) == (3, image.size[1], image.size[0]):
                    return picture
            except RuntimeError as error:
                # A damaged file, or one that this decoder does not support. Pillow gives a clear message.
                log.info("a JPEG is decoded on the CPU: %s", error)
        array = np.asarray(image.pixels())
        tensor = torch.empty(array.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        np.copyto(tensor.numpy(), array)
        return tensor.to(self._device, non_blocking=True).permute(2, 0, 1)


def gpu_jpeg_decoder(device: torch.device) -> Any | None:
    """A function bytes -> [3,H,W] uint8 on the GPU; None if this machine has no such decoder."""
    if device.type != "cuda":
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except Exception as error:  # a torchvision built for another torch raises arbitrary exceptions
        log.info("JPEGs are decoded on the CPU: torchvision cannot be used (%s)", error)
        return None

    def decode(data: bytes | memoryview) -> Tensor:
        file = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        decoded: Tensor = decode_jpeg(file, mode=ImageReadMode.RGB, device=device)
        return decoded

    try:
        decode(_tiny_jpeg())
    except Exception as error:  # built without nvJPEG, or the library is missing
        log.info("JPEGs are decoded on the CPU: %s", str(error).partition("\n")[0])
        return None
    return decode


def _tiny_jpeg() -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "grey").save(buffer, "JPEG")
    return buffer.getvalue()
