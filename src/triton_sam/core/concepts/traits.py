"""How a model finds concepts: numbers that its network and its published predictor fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConceptTraits:
    """The concept part of one model.

    Attributes:
        features: the encoder's output that the detector reads, [1,channels,side,side].
        tokens: of a text at most, start and end included.
        text_width: channels of a text's features.
        queries: instances that the detector can tell apart.
        mask_side: h and w of its low-resolution masks.
    """

    features: str = "backbone_features"
    channels: int = 1024
    side: int = 72
    tokens: int = 32
    text_width: int = 256
    queries: int = 200
    mask_side: int = 288
