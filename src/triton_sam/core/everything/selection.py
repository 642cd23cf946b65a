"""Which candidates stay: one of each group that covers the same thing, and small regions cleaned away."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.boxes import suppress
from triton_sam.core.everything.candidates import Candidates, Mask, RunMask
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.rle import BoolArray, rle

Same = npt.NDArray[np.bool_]


def best_of_crop(found: Candidates, options: EverythingOptions) -> Candidates:
    """One of each group of overlapping boxes in one crop, by falling predicted IoU."""
    return found.take(suppress(found.boxes, found.predicted_ious, options.box_nms_thresh))


def best_of_crops(found: Candidates, options: EverythingOptions) -> Candidates:
    """One of each group of overlapping boxes of several crops: the one of the smallest crop, which sees it best."""
    x0, y0, x1, y1 = found.crops.T
    return found.take(suppress(found.boxes, 1 / np.maximum((x1 - x0) * (y1 - y0), 1), options.crop_nms_thresh))


def without_small_regions(found: Candidates, options: EverythingOptions) -> tuple[Candidates, Same]:
    """(the same masks with small holes filled and small islands removed, [N] whether each is unchanged).

    Holes and islands are those of :mod:`~triton_sam.core.mask_cleaning`: a hole is enclosed, so that a small piece of
    background at the image's border is none (the published code fills it).
    """
    cleaning = Cleaning(options.min_mask_region_area, options.min_mask_region_area)
    masks: list[Mask] = []
    areas, boxes = found.areas.copy(), found.boxes.copy()
    is_same = np.ones(len(found), np.bool_)
    for index, mask in enumerate(found.masks):
        before = mask.pixels()
        after = clean_mask(before, cleaning)
        if after is before:
            masks.append(mask)
            continue
        masks.append(RunMask(rle(after)))
        is_same[index] = False
        areas[index], boxes[index] = np.count_nonzero(after), _box(after)
    return found.with_masks(tuple(masks), areas, boxes), is_same


def best_of_cleaned(found: Candidates, is_same: Same, options: EverythingOptions) -> Candidates:
    """One of each group that covers the same thing after cleaning: an unchanged one if there is one."""
    threshold = max(options.box_nms_thresh, options.crop_nms_thresh)
    return found.take(suppress(found.boxes, is_same.astype(np.float64), threshold))


def _box(mask: BoolArray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])
