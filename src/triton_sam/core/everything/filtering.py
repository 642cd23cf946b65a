"""Which masks of a decoded chunk are candidates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.boxes import touches_crop_edge
from triton_sam.core.everything.candidates import NONE, Candidates, LogitMask, Place
from triton_sam.core.everything.grids import Points
from triton_sam.core.everything.measures import Measures, measure
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame

Floats = npt.NDArray[np.float32]


def candidates_of_logits(
    logits: Floats, ious: Floats, points: Points, frame: Frame, place: Place, options: EverythingOptions
) -> Candidates:
    """A decoder's output -> the masks that are good enough, in the order of points.

    Args:
        logits: [P,M,h,w] float32, low resolution, in the model's square; ious: [P,M], predicted.
        points: [P,2] xy in original pixels of the whole image.
        frame: of the crop that was encoded, which ``place`` puts into the image.
    """
    if options.pred_iou_thresh is None:
        raise ValueError("pred_iou_thresh is the model's: replace it before filtering")
    # The cheap test first. NaN is not above anything.
    is_likely = ious > options.pred_iou_thresh if options.pred_iou_thresh > 0 else np.ones(ious.shape, np.bool_)
    rows, which = np.nonzero(is_likely)
    thresholds = options.mask_threshold, options.stability_score_offset, options.stability_score_thresh
    found: list[tuple[int, int, Measures]] = []
    for row, mask in zip(rows.tolist(), which.tolist(), strict=True):
        measures = measure(logits[row, mask], frame, *thresholds)
        if measures is not None and measures.area:
            found.append((row, mask, measures))
    if not found:
        return NONE
    x0, y0 = place.crop[:2]
    boxes = np.array([measures.box for _, _, measures in found], np.int64) + np.array([x0, y0, x0, y0])
    stays = np.flatnonzero(~touches_crop_edge(boxes, place.crop, place.width, place.height))
    found = [found[index] for index in stays]
    taken = np.array([row for row, _, _ in found], np.intp)
    return Candidates(
        tuple(_held(logits[row, mask], measures, frame, place, options) for row, mask, measures in found),
        np.array([measures.area for _, _, measures in found], np.int64),
        boxes[stays],
        ious[taken, [mask for _, mask, _ in found]].astype(np.float32),
        np.array([measures.stability for _, _, measures in found], np.float32),
        points[taken],
        np.tile(np.array(place.crop, np.int64), (len(found), 1)),
    )


def _held(logits: Floats, measures: Measures, frame: Frame, place: Place, options: EverythingOptions) -> LogitMask:
    rows, columns = measures.support
    # A copy in any case, so that the chunk's other logits can go.
    block = logits[rows, columns] - np.float32(options.mask_threshold)
    height, width = logits.shape
    return LogitMask(block, (rows.start, columns.start), (height, width), frame, place)
