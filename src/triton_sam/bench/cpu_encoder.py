"""The encoders for CPUs against the plain one: time in one run, in turn, and how far their masks agree."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.bench.figures import Figure
from triton_sam.core.geometry import Frame
from triton_sam.core.samples import photograph_folder
from triton_sam.engines.inputs import preprocess
from triton_sam.engines.onnx import open_session
from triton_sam.errors import SetupError
from triton_sam.models.specs import ModelSpec

#: Photographs out of scikit-image: the page's samples first, then others.
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
#: Nothing about the fast encoder was decided by these.
UNSEEN = ("cell.png", "clock_motion.png", "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png")
MOST_RATIO = 0.7
LEAST_IOU = 0.98
#: Of an encoder that differs by rounding only.
EXACT_IOU = 0.999
_GRID = 5
#: x0, y0, x1, y1 as shares of the sides.
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
    """How masks of one encoder agree with another's, over many prompts on one or several images.

    Attributes:
        best: [P], IoU of the masks that a click gets: each encoder's own best of the three.
        each: [P,M], IoU of each mask with its twin.
        flipped: [P], where the two chose different masks of the three.
        margins: [P], by how much the plain encoder's score of its choice is above that of the other's choice.
    """

    best: npt.NDArray[np.float64]
    each: npt.NDArray[np.float64]
    flipped: npt.NDArray[np.bool_]
    margins: npt.NDArray[np.float64]

    @classmethod
    def joined(cls, parts: list[Agreement]) -> Agreement:
        return cls(
            np.concatenate([part.best for part in parts]),
            np.concatenate([part.each for part in parts]),
            np.concatenate([part.flipped for part in parts]),
            np.concatenate([part.margins for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Encoders:
    """Files of one encoder: as it was published, rewritten in float32, and partly in 8 bits."""

    plain: Path
    exact: Path
    fast: Path


def measure_cpu_encoder(encoders: Encoders, decoder: Path, spec: ModelSpec, rounds: int = 9) -> Iterator[Figure]:
    """Time first, then masks: of float32 as the baseline, then of 8 bits.

    Args:
        rounds: runs of each encoder, in an order that is drawn anew for each round.
    """
    plain, fast = encoders.plain, encoders.fast
    yield ratio(plain, fast, spec, rounds)
    found = Agreement.joined([agreement(plain, encoders.exact, decoder, spec, picture) for picture in pictures()])
    detail = f"{found.best.size} prompts; {found.flipped.mean():.1%} choose another mask"
    yield Figure("mask IoU of the float32 encoder, worst", float(found.best.min()), "", None, detail, EXACT_IOU)
    found = Agreement.joined([agreement(plain, fast, decoder, spec, picture) for picture in pictures()])
    prompts = f"{found.best.size} prompts"
    low = int((found.best < LEAST_IOU).sum())
    flips = int(found.flipped.sum())
    yield Figure("mask IoU, mean", float(found.best.mean()), "", None, f"{prompts}, {low} under {LEAST_IOU}", LEAST_IOU)
    yield Figure("mask IoU, worst", float(found.best.min()), "", None, prompts)
    detail = f"a different one of the three masks; largest margin of their scores {found.margins.max():.3f}"
    yield Figure("clicks that choose another mask", flips / found.best.size * 100, "%", None, detail)
    same = found.best[~found.flipped]
    yield Figure("mask IoU where both choose alike, mean", float(same.mean()), "", None, prompts, LEAST_IOU)
    yield Figure("mask IoU where both choose alike, worst", float(same.min()), "")
    found = Agreement.joined([agreement(plain, fast, decoder, spec, picture) for picture in pictures(UNSEEN)])
    detail = f"{found.best.size} prompts on {len(UNSEEN)} photographs; {found.flipped.mean():.1%} choose another mask"
    yield Figure("mask IoU on photographs not seen before, mean", float(found.best.mean()), "", None, detail, LEAST_IOU)


def ratio(plain: Path, fast: Path, spec: ModelSpec, rounds: int) -> Figure:
    """Median seconds of the fast encoder over those of the plain one, in one process and in turn."""
    sessions = {"plain": open_session(plain), "fast": open_session(fast)}
    feeds = {spec.encoder.image: next(_pixels(spec, [next(pictures())]))}
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(rounds + 1):
        order = list(sessions)
        random.shuffle(order)
        for name in order:
            started = time.perf_counter()
            sessions[name].run(None, feeds)
            if number:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    pairs = [fast / plain for fast, plain in zip(seconds["fast"], seconds["plain"], strict=True)]
    middle = {name: median(values) for name, values in seconds.items()}
    detail = f"{middle['fast']:.2f} s / {middle['plain']:.2f} s; pairs {min(pairs):.2f} to {max(pairs):.2f}"
    return Figure("fast encoder / plain encoder", middle["fast"] / middle["plain"], "x", MOST_RATIO, detail)


def agreement(plain: Path, fast: Path, decoder: Path, spec: ModelSpec, picture: Image.Image) -> Agreement:
    """The same prompts on one image with either encoder: a grid of clicks, and boxes."""
    names = [name for name, _ in spec.encoder.outputs]
    pixels = next(_pixels(spec, [picture]))
    reader = open_session(decoder)
    answers = []
    for encoder in (plain, fast):
        session = open_session(encoder)
        tensors = dict(zip(names, session.run(names, {spec.encoder.image: pixels}), strict=True))
        answers.append(_masks(reader, spec, tensors))
    (wanted, wanted_scores), (given, given_scores) = answers
    rows = np.arange(len(wanted))
    theirs, ours = wanted_scores.argmax(axis=1), given_scores.argmax(axis=1)
    return Agreement(
        iou(wanted[rows, theirs], given[rows, ours]),
        iou(wanted, given),
        theirs != ours,
        (wanted_scores[rows, theirs] - wanted_scores[rows, ours]).astype(np.float64),
    )


def iou(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """[...,h,w] twice -> [...]; two empty masks agree."""
    union = (one | other).sum(axis=(-1, -2))
    shared = (one & other).sum(axis=(-1, -2))
    return np.where(union == 0, 1.0, shared / np.maximum(union, 1))


def pictures(names: Sequence[str] = PHOTOGRAPHS) -> Iterator[Image.Image]:
    """The photographs, mode RGB."""
    folder = photograph_folder()
    if folder is None:
        raise SetupError("the photographs come with scikit-image: pip install 'triton-sam[demo]'")
    for name in names:
        with Image.open(folder / name) as opened:
            yield opened.convert("RGB")


def _pixels(spec: ModelSpec, images: list[Image.Image]) -> Iterator[npt.NDArray[np.float32]]:
    for image in images:
        yield preprocess(image, Frame(*image.size, spec.side, spec.resize), spec)


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
