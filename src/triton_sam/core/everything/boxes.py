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
#: Boxes that are compared with each other in one go.
_AT_A_TIME = 128


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
    corners = boxes[order].astype(np.float64)
    left = np.arange(len(order))
    kept = [left[:0]]
    # Some at a time: among themselves one by one, which costs no call of numpy each, then against all that are left.
    while len(left):
        some, left = left[:_AT_A_TIME], left[_AT_A_TIME:]
        stay = some[_first_of_each(_overlap(corners[some], corners[some], threshold))]
        kept.append(stay)
        left = left[~_overlap(corners[stay], corners[left], threshold).any(axis=0)]
    found: Indices = order[np.concatenate(kept)]
    return found


def _overlap(ones: npt.NDArray[np.float64], others: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.bool_]:
    """[n,4] and [m,4] -> [n,m]: whether the IoU is more than the threshold."""
    x0, y0, x1, y1 = ones.T[:, :, None]
    left, top, right, bottom = others.T
    across = np.minimum(x1, right) - np.maximum(x0, left)
    down = np.minimum(y1, bottom) - np.maximum(y0, top)
    both = np.maximum(across, 0) * np.maximum(down, 0)
    either = (x1 - x0) * (y1 - y0) + (right - left) * (bottom - top) - both
    # Whole numbers: only an empty union is less than 1.
    overlaps: npt.NDArray[np.bool_] = both / np.maximum(either, 1) > threshold
    return overlaps


def _first_of_each(overlaps: npt.NDArray[np.bool_]) -> list[int]:
    """[n,n] -> those that overlap with none before them that stays."""
    rows = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(overlaps, axis=1, bitorder="little")]
    kept, gone = [], 0
    for index, row in enumerate(rows):
        if not gone >> index & 1:
            kept.append(index)
            gone |= row
    return kept
