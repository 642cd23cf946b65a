"""The memory layout of an embedding: one flat row for each image, in the order in which the decoder reads it.

The decoder upsamples its grid twice, and each cell becomes 2 x 2 finer ones. Features are stored in that order (cell,
then the four cells in it, then the four in each of those) with channels last, so that upsampling is a matrix product
without any reordering. Only the masks are brought into image order, at the very end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triton_sam.models.specs import BACKBONE_FEATURES, ModelSpec


def to_cells(features: Tensor, grid: int) -> Tensor:
    """[N,C,S,S] -> [N,S*S,C] in the order of cells; S is the grid, twice or four times it."""
    rows, channels, side = features.shape[:3]
    nested = features.permute(0, 2, 3, 1)
    while side > grid:
        side //= 2
        # Outer cells come first; the order inside a cell stays.
        nested = nested.reshape(rows, side, 2, side, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(rows, side, side, -1)
    return nested.reshape(rows, -1, channels)


def to_image(cells: Tensor, grid: int) -> Tensor:
    """[...,S*S] in the order of cells -> [...,S,S]; S is the grid, twice or four times it."""
    count = cells.shape[-1] // (grid * grid)
    levels = (count.bit_length() - 1) // 2
    lead = cells.shape[:-1]
    nested = cells.reshape(*lead, grid, grid, *(2,) * (2 * levels))
    first = len(lead)
    ys = [first, *(first + 2 + 2 * level for level in range(levels))]
    xs = [first + 1, *(first + 3 + 2 * level for level in range(levels))]
    side = grid * 2**levels
    return nested.permute(*range(first), *ys, *xs).reshape(*lead, side, side)


@dataclass(frozen=True, slots=True)
class Layout:
    """The position of each of the encoder's outputs in a flat row.

    Attributes:
        grid: cells of the embedding along a side.
        parts: (name, channels, side) in memory order: the embedding, then finer and finer features.
    """

    grid: int
    parts: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Layout:
        """The layout for what a model's decoder reads, coarse before fine."""
        read = [output for output in spec.encoder.outputs if output[0] != BACKBONE_FEATURES]
        shapes = sorted(read, key=lambda output: output[1][2])
        return cls(shapes[0][1][2], tuple((name, shape[1], shape[2]) for name, shape in shapes))

    @property
    def length(self) -> int:
        """Number of values in a row."""
        return sum(channels * side * side for _, channels, side in self.parts)

    def flatten(self, features: dict[str, Tensor]) -> Tensor:
        """Name -> [N,C,S,S]  ->  [N,length]."""
        return torch.cat([to_cells(features[name], self.grid).flatten(1) for name, _, _ in self.parts], dim=1)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """[N,length] -> name -> [N,cells,C], views."""
        found, start = {}, 0
        for name, channels, side in self.parts:
            end = start + channels * side * side
            found[name] = rows[:, start:end].view(len(rows), side * side, channels)
            start = end
        return found

    def image_order(self, row: Tensor, name: str) -> Tensor:
        """[length] -> one output as the encoder returns it, [1,C,S,S]."""
        cells = self.split(row[None])[name]
        return to_image(cells.transpose(1, 2), self.grid)
