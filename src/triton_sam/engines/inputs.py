"""Preprocessing shared by all engines: pictures and prompts to the arrays that a network takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import FloatArray
from triton_sam.models.specs import ModelSpec

_BOX_LABELS = (2.0, 3.0)


def preprocess(picture: Image.Image, frame: Frame, spec: ModelSpec) -> FloatArray:
    """A picture, mode RGB -> [1,3,side,side] float32 as the encoder takes it.

    Pillow's bilinear filter is antialiased when it shrinks an image, as the reference's resize is.
    """
    resized = np.asarray(picture.resize(frame.resized, Image.Resampling.BILINEAR))
    planes: npt.NDArray[np.float32] = np.ascontiguousarray(resized.transpose(2, 0, 1), dtype=np.float32)
    mean = np.array(spec.encoder.mean or (0.0, 0.0, 0.0), np.float32)[:, None, None]
    std = np.array(spec.encoder.std or (1.0, 1.0, 1.0), np.float32)[:, None, None]
    planes *= 1.0 / (255.0 * std)  # two passes over 12 MB instead of three
    planes -= mean / std
    if frame.policy is ResizePolicy.PAD:
        # The reference pads after normalising; a graph that normalises inside needs the colour that becomes zero.
        square = np.empty((3, frame.side, frame.side), np.float32)
        square[:] = np.array(spec.encoder.padding, np.float32)[:, None, None]
        square[:, : planes.shape[1], : planes.shape[2]] = planes
        planes = square
    return planes[None]


def model_points(prompt: ObjectPrompt, frame: Frame) -> tuple[FloatArray, FloatArray]:
    """One object's prompt -> ([P,2] model pixels, [P] labels); a box's corners come first, as in the reference."""
    labels = prompt.labels.astype(np.float32)
    if prompt.box is None:
        return frame.to_model(prompt.points), labels
    coords = np.concatenate([prompt.box.reshape(2, 2), prompt.points])
    return frame.to_model(coords), np.concatenate([np.array(_BOX_LABELS, np.float32), labels])


def listed_points(prompt: ObjectPrompt, frame: Frame) -> list[tuple[float, float, float]]:
    """:func:`model_points` as (x, y, label) tuples: faster than numpy for the few points of a click."""
    across, down = frame.scale
    found: list[tuple[float, float, float]] = []
    if prompt.box is not None:
        x0, y0, x1, y1 = prompt.box.tolist()
        found = [(x0 * across, y0 * down, _BOX_LABELS[0]), (x1 * across, y1 * down, _BOX_LABELS[1])]
    for (x, y), label in zip(prompt.points.tolist(), prompt.labels.tolist(), strict=True):
        found.append((x * across, y * down, label))
    return found
