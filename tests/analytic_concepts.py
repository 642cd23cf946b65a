"""Concepts whose instances are known in closed form: colours.

The picture's square is divided into 4 x 4 tiles. A tile has an instance of "red" if enough of it is red: the mask is
what is red in it, the box is around that, and the score grows with its share of the tile. An exemplar stands for the
colour in its middle; a negative one takes its colour away. :func:`found_in` computes what a detector returns, and
:func:`expected_instances` what a server must answer, from the picture itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tests.integration.reference import bilinear

Floats = npt.NDArray[np.float32]
#: Words that name a colour; all others name none.
COLOURS = {
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
    "yellow": (1.0, 1.0, 0.0),
}
TILES = 4
QUERIES = TILES * TILES
#: Largest distance of two similar colours in [0,1]^3; logits for each unit of it.
LIKENESS, PER_COLOUR, LIMIT = 0.5, 40.0, 32.0
#: Share of a tile at which an instance's logit is 0, and logits for the whole share.
SHARE, PER_SHARE = 0.1, 8.0
#: The same for the share of the picture at which a concept is present.
PRESENT, PER_PRESENT, MOST_PRESENT = 0.001, 1000.0, 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A detector's output for one concept: Q queries, one for each tile.

    Attributes:
        logits: [Q]; boxes: [Q,4] xyxy in 0..1, zeros without any instance; masks: [Q,g,g] logits.
    """

    logits: Floats
    presence: float
    boxes: Floats
    masks: Floats


def found_in(
    colours: Floats, words: str, exemplars: Sequence[Sequence[float]] = (), labels: Sequence[int] = ()
) -> Found:
    """What the detector finds.

    Args:
        colours: [g,g,3] of the squashed picture, in 0..1.
        exemplars: cx, cy, w, h in 0..1.
    """
    side = len(colours)
    likeness = np.full((side, side), -LIMIT)
    cut = np.full((side, side), LIMIT)

    def like(colour: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.asarray((LIKENESS - np.sqrt(((colours - np.asarray(colour)) ** 2).sum(axis=-1))) * PER_COLOUR)

    for word in words.lower().split():
        if word in COLOURS:
            likeness = np.maximum(likeness, like(COLOURS[word]))
    for (x, y, _, _), label in zip(exemplars, labels, strict=True):
        own = colours[min(int(y * side), side - 1), min(int(x * side), side - 1)]
        if label == 1:
            likeness = np.maximum(likeness, like(own))
        elif label == 0:
            cut = np.minimum(cut, -like(own))
    field = np.clip(np.minimum(likeness, cut), -LIMIT, LIMIT)
    inside = field > 0
    tile = side // TILES
    logits, boxes, masks = [], np.zeros((QUERIES, 4)), np.full((QUERIES, side, side), -LIMIT)
    for query in range(QUERIES):
        down, across = (tile * step for step in divmod(query, TILES))
        part = inside[down : down + tile, across : across + tile]
        logits.append(PER_SHARE * (part.mean() - SHARE))
        masks[query, down : down + tile, across : across + tile] = field[down : down + tile, across : across + tile]
        if part.any():
            rows, columns = np.nonzero(part)
            boxes[query] = np.array(
                [across + columns.min(), down + rows.min(), across + columns.max() + 1, down + rows.max() + 1]
            )
    presence = np.clip(PER_PRESENT * (inside.mean() - PRESENT), -MOST_PRESENT, MOST_PRESENT)
    return Found(
        np.array(logits, np.float32),
        float(presence),
        (boxes / side).astype(np.float32),
        masks.astype(np.float32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """One instance of an answer: box in original pixels, logits of the mask at the picture's size, [H,W]."""

    score: float
    box: tuple[float, float, float, float]
    logits: npt.NDArray[np.float64]


def colours_of(picture: Image.Image, side: int, cells: int) -> Floats:
    """[cells,cells,3] in 0..1: the picture squashed to ``side`` pixels, and averaged over cells."""
    squashed = np.asarray(picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR), np.float64) / 255.0
    cell = side // cells
    return squashed.reshape(cells, cell, cells, cell, 3).mean(axis=(1, 3)).astype(np.float32)


def expected_instances(
    picture: Image.Image,
    text: str | None = None,
    exemplars: Sequence[Sequence[float]] = (),
    labels: Sequence[int] | None = None,
    *,
    threshold: float = 0.5,
    side: int = 1024,
    cells: int = 256,
) -> list[Expected]:
    """The instances of one concept, the best first; exemplars are x0, y0, x1, y1 in original pixels."""
    width, height = picture.size
    relative = [
        ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
        for x0, y0, x1, y1 in exemplars
    ]
    found = found_in(colours_of(picture, side, cells), text or "", relative, labels or [1] * len(relative))
    scores = 1 / (1 + np.exp(-found.logits.astype(np.float64))) / (1 + np.exp(-found.presence))
    instances = []
    for query in sorted(range(QUERIES), key=lambda query: -scores[query]):
        if scores[query] > threshold:
            x0, y0, x1, y1 = (found.boxes[query] * [width, height, width, height]).tolist()
            logits = bilinear(found.masks[query], width, height)
            instances.append(Expected(float(scores[query]), (x0, y0, x1, y1), logits))
    return instances


def scene(width: int = 320, height: int = 240) -> Image.Image:
    """Three red, two blue and one yellow shape of different sizes on grey, each in a tile of its own."""
    picture = Image.new("RGB", (width, height), (128, 128, 128))
    draw = ImageDraw.Draw(picture)
    tile = width / TILES, height / TILES
    shapes = (
        ((0, 0), 0.9, "red"),
        ((2, 1), 0.7, "red"),
        ((3, 3), 0.5, "red"),
        ((1, 2), 0.8, "blue"),
        ((3, 0), 0.6, "blue"),
        ((0, 3), 0.75, "yellow"),
    )
    for (column, row), share, colour in shapes:
        x, y = (column + 0.5) * tile[0], (row + 0.5) * tile[1]
        half = share * tile[0] / 2, share * tile[1] / 2
        rgb = tuple(round(255 * part) for part in COLOURS[colour])
        draw.rectangle([x - half[0], y - half[1], x + half[0], y + half[1]], fill=rgb)
    return picture
