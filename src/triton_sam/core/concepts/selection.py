"""Chooses the instances of a concept from a detector's outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triton_sam.core.geometry import Frame

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which queries are instances.

    Attributes:
        presence: probability that the concept is in the image at all.
        found: number of instances above the threshold, returned or not.
        queries: [K] indices, by falling score; of equal ones the first query comes first.
        scores: [K] float32.
    """

    presence: float
    found: int
    queries: npt.NDArray[np.intp]
    scores: Floats


def select(logits: Floats, presence_logit: float, threshold: float, most: int) -> Selection:
    """The queries [Q] whose score, sigmoid(logit) x sigmoid(presence), is above ``threshold``; at most ``most``."""
    presence = float(sigmoid(np.float32(presence_logit)))
    scores = sigmoid(logits.astype(np.float32)) * np.float32(presence)
    order = np.argsort(-scores, kind="stable")
    kept = order[scores[order] > threshold]
    return Selection(presence, len(kept), kept[:most], scores[kept[:most]])


def sigmoid(values: npt.ArrayLike) -> Floats:
    """Without overflow for large negative values; same shape, float32."""
    array = np.asarray(values, np.float32)
    half = np.exp(-np.abs(array))
    result: Floats = np.where(array >= 0, 1 / (1 + half), half / (1 + half)).astype(np.float32)
    return result


def pixel_boxes(boxes: Floats, frame: Frame) -> Floats:
    """[K,4] xyxy in 0..1 of the model's square -> original pixels, clipped to the image."""
    limits = np.array([frame.width, frame.height], np.float32)
    corners = frame.to_original(boxes.reshape(-1, 2, 2) * np.float32(frame.side))
    result: Floats = np.clip(corners, 0, limits).reshape(-1, 4)
    return result


def square_boxes(boxes: Floats, frame: Frame) -> Floats:
    """[E,4] xyxy in original pixels -> cx, cy, w, h in 0..1 of the model's square, as the geometry encoder reads."""
    corners = frame.to_model(boxes.reshape(-1, 2, 2)) / np.float32(frame.side)
    low, high = corners[:, 0], corners[:, 1]
    result: Floats = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
    return result
