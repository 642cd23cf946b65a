"""Values of ONNX Runtime in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.core.geometry import Frame
from triton_sam.engines.base import FloatArray


@dataclass(frozen=True, eq=False)
class DeviceEmbedding:
    """The encoder's outputs as ONNX Runtime values in GPU memory."""

    frame: Frame
    values: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(value.shape())) * np.dtype(np.float32).itemsize for value in self.values.values())

    def array(self, name: str) -> FloatArray:
        array: FloatArray = self.values[name].numpy()
        return array

    def framed(self, frame: Frame) -> DeviceEmbedding:
        return DeviceEmbedding(frame, self.values)
