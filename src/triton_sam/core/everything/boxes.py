"""Boxes of masks: which ones touch a crop's edge, and which ones cover the same thing.

A box is x0, y0, x1, y1 in original pixels: the first and the last column and row that a mask has, both inclusive, as
published. So its width is ``x1 - x0``, one less than the number of columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.grids import CropBox

Boxes = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
#: How near, in pixels, counts as touching an edge.
_NEAR = 20


def touches_crop_edge(boxes: Boxes, crop: CropBox, width: int, height: int) -> npt.NDArray[np.bool_]:
    """[N,4] -> [N]: whether an edge lies near one of the crop that is not the image's: the crop cuts the object off."""
    is_near_crop = np.abs(boxes - np.array(crop)) <= _NEAR
    is_near_image = np.abs(boxes - np.array([0, 0, width, height])) <= _NEAR
    touches: npt.NDArray[np.bool_] = (is_near_crop & ~is_near_image).any(axis=1)
    return touches


def suppress(boxes: Boxes, scores: npt.ArrayLike, threshold: float) -> Indices:
    """Non-maximum suppression: [N,4] and [N] -> the indices that stay, by falling score.

    The highest score stays and every box goes whose IoU with it is more than the threshold; then the next one. Of equal
    scores the earlier one comes first. Boxes without an area suppress nothing.
    """
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    x0, y0, x1, y1 = boxes[order].astype(np.float64).T
    areas = (x1 - x0) * (y1 - y0)
    left = np.arange(len(order))
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        across = np.minimum(x1[left], x1[best]) - np.maximum(x0[left], x0[best])
        down = np.minimum(y1[left], y1[best]) - np.maximum(y0[left], y0[best])
        both = np.maximum(across, 0) * np.maximum(down, 0)
        either = np.maximum(areas[left] + areas[best] - both, 1)  # whole numbers: only an empty union is less
        left = left[both / either <= threshold]
    found: Indices = order[np.array(kept, dtype=np.intp)]
    return found
