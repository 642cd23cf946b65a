"""An image on its way through the torch engine: prepared pixels, and its embedding, both on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.geometry import Frame
from triton_sam.engines.base import FloatArray
from triton_sam.engines.torch.layout import Layout
from triton_sam.models.specs import BACKBONE_FEATURES


@dataclass(frozen=True, eq=False)
class TorchEmbedding:
    """One image as a flat row on the device; see :mod:`triton_sam.engines.torch.layout`.

    Attributes:
        features: [n,C] on the device, by rows of cells, what the detector of concepts reads; None without one.
    """

    frame: Frame
    row: Tensor
    layout: Layout
    features: Tensor | None = None

    @property
    def nbytes(self) -> int:
        kept = (self.row,) if self.features is None else (self.row, self.features)
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    def array(self, name: str) -> FloatArray:
        with torch.inference_mode():
            if name == BACKBONE_FEATURES and self.features is not None:
                image = self.features.T.reshape(1, -1, self.layout.grid, self.layout.grid)
            else:
                image = self.layout.image_order(self.row, name)
            array: FloatArray = image.float().cpu().numpy()
        return np.ascontiguousarray(array)

    def framed(self, frame: Frame) -> TorchEmbedding:
        return replace(self, frame=frame)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """Pixels on the device, and the event after which they are complete."""

    frame: Frame
    pixels: Tensor
    ready: torch.cuda.Event | None
