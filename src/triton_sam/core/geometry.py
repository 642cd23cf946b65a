"""Frame: maps an image and its coordinates between original and model pixels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class ResizePolicy(str, Enum):
    """How an image of any shape is resized to the square input of a model."""

    SQUASH = "squash"
    """Both sides to the model's size; the aspect ratio changes (SAM 2)."""
    PAD = "pad"
    """The longest side to the model's size, the rest padded on the right and below (SAM 1)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The geometry of one image for one model.

    Attributes:
        width, height: size of the original image in pixels.
        side: side of the model's square input in pixels.
        policy: how the original is resized to that square.
    """

    width: int
    height: int
    side: int
    policy: ResizePolicy

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.side) < 1:
            raise ValueError(f"a frame needs positive sizes, not {self.width} x {self.height} into {self.side}")

    @property
    def resized(self) -> tuple[int, int]:
        """(width, height) of the image inside the model's square, in model pixels."""
        if self.policy is ResizePolicy.SQUASH:
            return self.side, self.side
        scale = self.side / max(self.width, self.height)
        return max(1, int(self.width * scale + 0.5)), max(1, int(self.height * scale + 0.5))

    @property
    def scale(self) -> tuple[float, float]:
        """(x, y) factors from original to model pixels."""
        inner_width, inner_height = self.resized
        return inner_width / self.width, inner_height / self.height

    def to_model(self, points: npt.ArrayLike) -> FloatArray:
        """[..., 2] xy in original pixels -> [..., 2] xy in model pixels."""
        return np.asarray(np.asarray(points, dtype=np.float64) * self.scale, dtype=np.float32)

    def to_original(self, points: npt.ArrayLike) -> FloatArray:
        """[..., 2] xy in model pixels -> [..., 2] xy in original pixels."""
        return np.asarray(np.asarray(points, dtype=np.float64) / self.scale, dtype=np.float32)
