"""Where points are tried: grids, crops, and the chunks in which they are decoded.

Grids and crop boxes are those that Meta's automatic mask generators define. With a ``region``, its box takes the place
of the image: the grid of the first layer is spread over it, and the crops of further layers divide it. The first
layer's crop is the whole image all the same, because that is what the embedding at hand shows.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.options import EverythingOptions

Points = npt.NDArray[np.float64]
#: x0, y0, x1, y1 in original pixels, the last ones exclusive.
CropBox = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Points that are decoded together.

    Attributes:
        crop: the part of the image whose embedding is used.
        points: [P,2] xy in original pixels.
    """

    crop: CropBox
    points: Points


def point_grid(side: int) -> Points:
    """[side * side,2] xy as shares of 1: the centres of ``side`` x ``side`` equal tiles, row by row."""
    centres = (np.arange(side) + 0.5) / side
    x, y = np.meshgrid(centres, centres)
    return np.stack([x.ravel(), y.ravel()], axis=1)


def layer_grids(options: EverythingOptions) -> list[Points]:
    """The grid of each layer, [P,2] xy as shares of a crop's sides."""
    if options.point_grids is not None:
        return [np.asarray(grid, dtype=np.float64) for grid in options.point_grids]
    return [point_grid(side) for side in options.layer_sides()]


def crop_boxes(width: int, height: int, layers: int, overlap_ratio: float) -> list[tuple[int, CropBox]]:
    """(layer, box) of all crops: the whole image, then ``2**i`` by ``2**i`` overlapping ones for layer ``i``."""
    boxes: list[tuple[int, CropBox]] = [(0, (0, 0, width, height))]
    for layer in range(1, layers + 1):
        count = 2**layer
        overlap = int(overlap_ratio * min(width, height) * (2 / count))
        across = math.ceil((overlap * (count - 1) + width) / count)
        down = math.ceil((overlap * (count - 1) + height) / count)
        # Columns before rows, as published: of crops of equal size the first one's masks win.
        for column, row in itertools.product(range(count), repeat=2):
            x0, y0 = (across - overlap) * column, (down - overlap) * row
            boxes.append((layer, (x0, y0, min(x0 + across, width), min(y0 + down, height))))
    return [(layer, box) for layer, box in boxes if box[0] < box[2] and box[1] < box[3]]


def plan(options: EverythingOptions, width: int, height: int, most_rows: int | None = None) -> list[Chunk]:
    """All points of a ``width`` x ``height`` image, crop by crop, in chunks.

    Args:
        most_rows: the most points of a chunk, if that is fewer than ``points_per_batch``.
    """
    size = min(options.points_per_batch, most_rows or options.points_per_batch)
    grids = layer_grids(options)
    chunks = []
    for layer, crop, tried in _crops(options, width, height):
        x0, y0, x1, y1 = tried
        points = grids[layer] * (x1 - x0, y1 - y0) + (x0, y0)
        chunks += [Chunk(crop, points[start : start + size]) for start in range(0, len(points), size)]
    return chunks


def _crops(
    options: EverythingOptions, width: int, height: int
) -> list[tuple[int, CropBox, tuple[float, float, float, float]]]:
    """(layer, what is encoded, what the grid is spread over)."""
    whole: CropBox = (0, 0, width, height)
    if options.region is None:
        boxes = crop_boxes(width, height, options.crop_n_layers, options.crop_overlap_ratio)
        return [(layer, box, box) for layer, box in boxes]
    x0, y0, x1, y1 = math.floor(options.region[0]), math.floor(options.region[1]), *map(math.ceil, options.region[2:])
    inner = crop_boxes(x1 - x0, y1 - y0, options.crop_n_layers, options.crop_overlap_ratio)
    shifted = [(layer, (box[0] + x0, box[1] + y0, box[2] + x0, box[3] + y0)) for layer, box in inner[1:]]
    return [(0, whole, options.region), *((layer, box, box) for layer, box in shifted)]
