"""What every engine takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.geometry import Frame
from triton_sam.prompts import ObjectPrompt
from triton_sam.specs import ModelSpec

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """One encoded image: the encoder's outputs under the decoder's input names, and the image's geometry."""

    frame: Frame
    tensors: Mapping[str, FloatArray]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A decoder's answer for one object.

    Attributes:
        logits: [M,h,w] float32, low resolution, in the model's square.
        scores: [M] float32, predicted IoU.
    """

    logits: FloatArray
    scores: FloatArray


class Engine(Protocol):
    """A loaded model. ``encode`` and ``decode`` may run at the same time, each on a thread of its own."""

    spec: ModelSpec

    def encode(self, picture: Image.Image) -> Embedding:
        """A picture, mode RGB -> its embedding."""

    def decode(self, embedding: Embedding, prompts: Sequence[ObjectPrompt], *, multimask: bool) -> list[Decoded]:
        """Prompts in original pixels, all on one image -> one answer each, in order."""


def select(decoded: Decoded, *, multimask: bool) -> Decoded:
    """All masks of a graph, or its best one by predicted IoU."""
    if multimask or len(decoded.scores) == 1:
        return decoded
    best = int(np.argmax(decoded.scores))
    return Decoded(decoded.logits[best : best + 1], decoded.scores[best : best + 1])
