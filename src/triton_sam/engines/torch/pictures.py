"""Reads image files into the encoder's input: decodes JPEGs on the GPU if it can, resizes and normalises there."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.engines.torch.resizing import kernel_resizes, normal_of, resized, resized_by_kernel
from triton_sam.models.specs import ModelSpec

log = logging.getLogger(__name__)


class PictureReader:
    """Reads images for one model. Its methods may run on several threads at a time, each with its own stream."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype, *, gpu_jpeg: bool = True) -> None:
        self._spec = spec
        self._device = device
        self._dtype = dtype
        self._normal = normal_of(spec.architecture, device)
        self._by_kernel = False
        # The GPU upsamples the colour of most JPEGs by repeating it, Pillow by blending: some masks differ visibly.
        self._decode_jpeg = gpu_jpeg_decoder(device) if gpu_jpeg else None

    def read(self, image: EncodedImage) -> tuple[Frame, Tensor]:
        """A file -> its geometry and [3,side,side], normalised, on the device."""
        picture = self._picture(image)
        frame = Frame(picture.shape[2], picture.shape[1], self._spec.side, self._spec.resize)
        return frame, self.fit(picture, frame)

    @property
    def may_use_kernel(self) -> bool:
        return self._device.type == "cuda"

    def use_kernel(self) -> None:
        """Compiles and uses the kernel that resizes, if it works here; from the next picture on."""
        if self.may_use_kernel:
            self._by_kernel = kernel_resizes(self._normal, self._dtype)

    def fit(self, picture: Tensor, frame: Frame) -> Tensor:
        """[3,H,W] uint8 on the device -> [3,side,side], normalised; padding is zero."""
        given = resized_by_kernel(picture, frame, self._normal, self._dtype) if self._by_kernel else None
        return resized(picture, frame, self._normal, self._dtype) if given is None else given

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
