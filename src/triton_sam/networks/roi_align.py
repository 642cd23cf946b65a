"""RoIAlign as two matrix products: the mean of bilinear samples on a grid is separable into rows and columns."""

from __future__ import annotations

import torch
from torch import Tensor


def roi_align(features: Tensor, boxes: Tensor, size: int) -> Tensor:
    """torchvision's ``roi_align`` with its defaults: as many samples as a box has cells, and no half-cell shift.

    Args:
        features: [N,C,h,w]; N is B or 1.
        boxes: [B,E,4] x0, y0, x1, y1 in cells, none larger than the map.
        size: side of the result, in parts of a box.

    Returns:
        [B,E,C,size,size].
    """
    rows = _weights(boxes[..., 1], boxes[..., 3], features.shape[2], size).to(features.dtype)
    columns = _weights(boxes[..., 0], boxes[..., 2], features.shape[3], size).to(features.dtype)
    count, exemplars = boxes.shape[0], boxes.shape[1]
    flat = features.flatten(1, 2)  # [N,C*h,w]
    across = flat[:, None] @ columns.transpose(-1, -2)  # [B,E,C*h,size]
    across = across.reshape(count, exemplars, features.shape[1], features.shape[2], size)
    return rows[:, :, None] @ across


def _weights(low: Tensor, high: Tensor, cells: int, size: int) -> Tensor:
    """[B,E,size,cells]: the share of each cell of a line in each of the ``size`` parts between two places [B,E]."""
    length = (high - low).clamp(min=1.0)[..., None, None]
    part = length / size
    samples = part.ceil()
    # One more than a box of the whole map needs: rounding may make it a little larger.
    number = torch.arange(cells // size + 2, dtype=low.dtype, device=low.device)
    which = torch.arange(size, dtype=low.dtype, device=low.device)[:, None]
    places = low[..., None, None] + which * part + (number + 0.5) * part / samples
    counts = (number < samples) & (places >= -1) & (places <= cells)
    places = places.clamp(0, cells - 1)[..., None]
    near = (1 - (places - torch.arange(cells, dtype=low.dtype, device=low.device)).abs()).clamp(min=0)
    return (near * (counts.to(low.dtype) / samples)[..., None]).sum(-2)
