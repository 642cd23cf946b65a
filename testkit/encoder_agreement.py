"""How far the masks of two encoders agree, over many prompts on photographs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.geometry import Frame
from triton_sam.core.samples import photograph_folder
from triton_sam.engines.inputs import preprocess
from triton_sam.errors import SetupError
from triton_sam.models.specs import ModelSpec

#: Files of scikit-image: first the web page's samples, then others.
PHOTOGRAPHS = (
    "coffee.png",
    "chelsea.png",
    "coins.png",
    "ihc.png",
    "retina.jpg",
    "astronaut.png",
    "camera.png",
    "rocket.jpg",
)
#: Photographs that were not used to decide anything about the 8-bit encoder.
UNSEEN = ("cell.png", "clock_motion.png", "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png")
#: The least IoU of an encoder that differs by rounding only.
EXACT_IOU = 0.999
_GRID = 5
#: x0, y0, x1, y1 as fractions of the sides.
_BOXES = (
    (0.1, 0.1, 0.5, 0.5),
    (0.5, 0.1, 0.9, 0.5),
    (0.1, 0.5, 0.5, 0.9),
    (0.5, 0.5, 0.9, 0.9),
    (0.3, 0.3, 0.7, 0.7),
    (0.05, 0.05, 0.95, 0.95),
    (0.24, 0.04, 0.7, 0.56),
)
_BATCH = 8

Tensors = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Agreement of one encoder's masks with those of a reference encoder, for P prompts with M masks each.

    Attributes:
        best: [P], IoU of the masks that a click returns: each encoder's own best of the three.
        each: [P,M], IoU of each mask with its counterpart.
        flipped: [P], True if the two encoders chose different masks of the three.
        margins: [P], the reference's score of its own choice minus its score of the other encoder's choice.
    """

    best: npt.NDArray[np.float64]
    each: npt.NDArray[np.float64]
    flipped: npt.NDArray[np.bool_]
    margins: npt.NDArray[np.float64]

    @classmethod
    def joined(cls, parts: list[Agreement]) -> Agreement:
        """The agreement over all prompts of several images."""
        return cls(
            np.concatenate([part.best for part in parts]),
            np.concatenate([part.each for part in parts]),
            np.concatenate([part.flipped for part in parts]),
            np.concatenate([part.margins for part in parts]),
        )


def agreement(reference: Path, encoder: Path, decoder: Path, spec: ModelSpec, picture: Image.Image) -> Agreement:
    """Runs the same prompts on one image with both encoders: a grid of clicks, and boxes."""
    names = [name for name, _ in spec.encoder.outputs]
    pixels = encoder_pixels(spec, picture)
    from triton_sam.engines.onnx import open_session  # photographs are also read where there is no ONNX Runtime

    decoder_session = open_session(decoder)
    answers = []
    for file in (reference, encoder):
        session = open_session(file)
        tensors = dict(zip(names, session.run(names, {spec.encoder.image: pixels}), strict=True))
        answers.append(_masks(decoder_session, spec, tensors))
    (wanted, wanted_scores), (given, given_scores) = answers
    rows = np.arange(len(wanted))
    reference_choice, encoder_choice = wanted_scores.argmax(axis=1), given_scores.argmax(axis=1)
    return Agreement(
        iou(wanted[rows, reference_choice], given[rows, encoder_choice]),
        iou(wanted, given),
        reference_choice != encoder_choice,
        (wanted_scores[rows, reference_choice] - wanted_scores[rows, encoder_choice]).astype(np.float64),
    )


def iou(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Intersection over union, [...,h,w] twice -> [...]; 1 for two empty masks."""
    union = (first | second).sum(axis=(-1, -2))
    shared = (first & second).sum(axis=(-1, -2))
    return np.where(union == 0, 1.0, shared / np.maximum(union, 1))


def pictures(names: Sequence[str] = PHOTOGRAPHS, folder: Path | None = None) -> Iterator[Image.Image]:
    """The photographs, mode RGB.

    Args:
        folder: where they are; scikit-image's by default.
    """
    folder = folder or photograph_folder()
    if folder is None:
        raise SetupError("the photographs come with scikit-image: pip install 'triton-sam[demo]'")
    for name in names:
        with Image.open(folder / name) as opened:
            yield opened.convert("RGB")


def encoder_pixels(spec: ModelSpec, picture: Image.Image) -> npt.NDArray[np.float32]:
    """[1,3,side,side], the encoder's input for an image."""
    return preprocess(picture, Frame(*picture.size, spec.side, spec.resize), spec)


def _masks(decoder: Any, spec: ModelSpec, tensors: Tensors) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """[P,M,h,w] masks in the model's own square, and [P,M] scores."""
    names = spec.decoder
    steps = (np.arange(_GRID, dtype=np.float32) + 0.5) / _GRID * spec.side
    clicks = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 1, 2)
    boxes = np.array(_BOXES, np.float32).reshape(-1, 2, 2) * spec.side
    masks, scores = [], []
    for coords, label in ((clicks, [1.0]), (boxes, [2.0, 3.0])):
        for start in range(0, len(coords), _BATCH):
            batch = coords[start : start + _BATCH]
            feeds = {
                **tensors,
                names.points: batch,
                names.labels: np.tile(np.array(label, np.float32), (len(batch), 1)),
                names.mask: np.zeros((len(batch), 1, names.mask_side, names.mask_side), np.float32),
                names.mask_flag: np.zeros(1, np.float32),
            }
            if names.multimask is not None:
                feeds[names.multimask] = np.ones(1, np.float32)
            logits, found = decoder.run([names.masks, names.scores], feeds)
            masks.append(logits > 0)
            scores.append(found)
    return np.concatenate(masks), np.concatenate(scores)
