"""Tables of positions as numpy computes them, equal to torch's up to rounding."""

from __future__ import annotations

import functools
import math

import numpy as np

from triton_sam.export.assembly.tensor_files import Array
from triton_sam.export.onnx_graph import FloatArray

#: Of torch's bicubic interpolation.
_CUBIC = -0.75
_BASE = 10_000.0
_EPS = 1e-6
#: How much of the positions is added to the image that attends to memories.
_POSITION_SHARE = 0.1


def image_positions(background: Array, window: Array, side: int) -> FloatArray:
    """Hiera's positions: a small table over the whole image, and one that repeats in every window.

    Args:
        background, window: [1,C,b,b] and [1,C,w,w].
        side: of the result, cells.

    Returns:
        [1,side,side,C].
    """
    over = _cubic_weights(background.shape[2], side)
    whole = np.einsum("ya,xb,cab->yxc", over, over, background[0].astype(np.float64), optimize=True)
    times = -(-side // window.shape[2])
    whole += np.tile(window[0].transpose(1, 2, 0), (times, times, 1))[:side, :side]
    return _float32(whole[None])


def split_positions(positions: Array, background: int, window: int) -> tuple[FloatArray, FloatArray]:
    """The two tables of :func:`image_positions` again, by least squares.

    A constant may be in either table, so theirs are not determined; their sum is, for every side.

    Args:
        positions: [1,C,side,side].
        background, window: sides of the two tables.

    Returns:
        [1,C,b,b] and [1,C,w,w].
    """
    channels, side = positions.shape[1:3]
    over = _cubic_weights(background, side)
    inside = np.eye(window)[np.arange(side) % window]
    table = np.concatenate(
        [
            np.einsum("ya,xb->yxab", over, over).reshape(side * side, -1),
            np.einsum("ya,xb->yxab", inside, inside).reshape(side * side, -1),
        ],
        axis=1,
    )
    wanted = positions[0].reshape(channels, -1).T.astype(np.float64)
    found = np.linalg.lstsq(table.T @ table, table.T @ wanted, rcond=1e-12)[0].T.astype(np.float32)
    count = background**2
    return (
        found[:, :count].reshape(1, channels, background, background),
        found[:, count:].reshape(1, channels, window, window),
    )


@functools.lru_cache
def _cubic_weights(given: int, wanted: int) -> Array:
    """[wanted,given]: the share of each given cell in each wanted one, as torch has it without aligned corners."""
    places = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    first = np.floor(places).astype(int)
    weights = np.zeros((wanted, given))
    for step in (-1, 0, 1, 2):
        away = np.abs(places - first - step)
        near = ((_CUBIC + 2) * away - (_CUBIC + 3)) * away**2 + 1
        far = ((_CUBIC * away - 5 * _CUBIC) * away + 8 * _CUBIC) * away - 4 * _CUBIC
        np.add.at(weights, (np.arange(wanted), (first + step).clip(0, given - 1)), np.where(away <= 1, near, far))
    return weights


def decoder_positions(frequencies: Array, grid: int) -> FloatArray:
    """[1,grid*grid,2C] positions of the embedding's cells, of frequencies [2,C]."""
    line = 2 * (np.arange(grid) + 0.5) / grid - 1
    rows, columns = np.meshgrid(line, line, indexing="ij")
    angles = 2 * math.pi * np.stack([columns, rows], axis=2).reshape(-1, 2) @ frequencies.astype(np.float64)
    return _float32(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[None])


def memory_waves(grid: int, width: int) -> FloatArray:
    """[grid*grid,width] sines and cosines of the cells' places: of the rows first, then of the columns."""
    places = np.arange(1, grid + 1) / (grid + _EPS) * (2 * math.pi)
    half = width // 2
    angles = places[:, None] / _BASE ** (np.arange(half) // 2 * 2 / half)
    line = np.stack([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=2).reshape(grid, half)
    return _over_cells(line, line)


def image_waves(grid: int, width: int) -> FloatArray:
    """The share of :func:`memory_waves` that is added to an image which attends to memories."""
    return (_POSITION_SHARE * memory_waves(grid, width)).astype(np.float32)


def turns(grid: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines [grid*grid,width/2] by which pairs of channels turn at each cell; the column's pairs first."""
    angles = np.arange(grid)[:, None] * _BASE ** -(np.arange(0, width, 4) / width)
    both = _over_cells(angles, angles, columns_first=True).astype(np.float64)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def _over_cells(rows: Array, columns: Array, *, columns_first: bool = False) -> FloatArray:
    """[grid,R] and [grid,C] -> [grid*grid,R+C]."""
    grid = len(rows)
    parts = [np.repeat(rows, grid, axis=0), np.tile(columns, (grid, 1))]
    return _float32(np.concatenate(parts[::-1] if columns_first else parts, axis=1))


def _float32(array: Array) -> FloatArray:
    rounded: FloatArray = array.astype(np.float32)
    return rounded
