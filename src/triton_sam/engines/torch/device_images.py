"""An image on its way through the torch engine: prepared pixels, and its embedding, both on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.geometry import Frame
from triton_sam.engines.base import FloatArray
from triton_sam.engines.torch.layout import Layout


@dataclass(frozen=True, eq=False)
class TorchEmbedding:
    """One image as a flat row on the device; see :mod:`triton_sam.engines.torch.layout`."""

    frame: Frame
    row: Tensor
    layout: Layout

    @property
    def nbytes(self) -> int:
        return self.row.numel() * self.row.element_size()

    def array(self, name: str) -> FloatArray:
        with torch.inference_mode():
            array: FloatArray = self.layout.image_order(self.row, name).float().cpu().numpy()
        return np.ascontiguousarray(array)

    def framed(self, frame: Frame) -> TorchEmbedding:
        return TorchEmbedding(frame, self.row, self.layout)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """Pixels on the device, and the event after which they are complete."""

    frame: Frame
    pixels: Tensor
    ready: torch.cuda.Event | None
