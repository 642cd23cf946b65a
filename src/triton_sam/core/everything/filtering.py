"""Which masks of a decoded chunk are candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.boxes import touches_crop_edge
from triton_sam.core.everything.candidates import NONE, Candidates, LogitMask, Mask, Place
from triton_sam.core.everything.grids import Points
from triton_sam.core.everything.measures import Measures, measure
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Masks of a chunk that passed the thresholds of predicted IoU and stability, and are not empty.

    Attributes:
        masks: N, as :class:`~triton_sam.core.everything.candidates.PackedMask` for instance.
        rows: [N] which point of the chunk each belongs to.
        areas: [N]; boxes: [N,4], first and last column and row, x0, y0, x1, y1, inclusive, in pixels of the crop.
        predicted_ious, stability_scores: [N].
    """

    masks: Sequence[Mask]
    rows: npt.ArrayLike
    areas: npt.ArrayLike
    boxes: npt.ArrayLike
    predicted_ious: npt.ArrayLike
    stability_scores: npt.ArrayLike


def candidates_of(found: Measured, points: Points, place: Place) -> Candidates:
    """Puts masks of a crop into the image, and drops those that the crop cuts off.

    Args:
        points: [P,2] xy of the chunk, original pixels of the whole image.
    """
    if not len(found.masks):
        return NONE
    x0, y0 = place.crop[:2]
    boxes = np.asarray(found.boxes, np.int64) + np.array([x0, y0, x0, y0])
    whole = Candidates(
        tuple(found.masks),
        np.asarray(found.areas, np.int64),
        boxes,
        np.asarray(found.predicted_ious, np.float32),
        np.asarray(found.stability_scores, np.float32),
        points[np.asarray(found.rows, np.intp)],
        np.tile(np.array(place.crop, np.int64), (len(found.masks), 1)),
    )
    is_cut = touches_crop_edge(boxes, place.crop, place.width, place.height)
    return whole.take(np.flatnonzero(~is_cut)) if is_cut.any() else whole


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
    thresholds = options.mask_threshold, options.stability_score_offset, options.stability_score_thresh
    found: list[tuple[int, int, Measures]] = []
    for row, mask in np.argwhere(is_likely).tolist():
        measures = measure(logits[row, mask], frame, *thresholds)
        if measures is not None and measures.area:
            found.append((row, mask, measures))
    return candidates_of(
        Measured(
            [_held(logits[row, mask], measures, frame, place, options) for row, mask, measures in found],
            [row for row, _, _ in found],
            [measures.area for _, _, measures in found],
            [measures.box for _, _, measures in found],
            [ious[row, mask] for row, mask, _ in found],
            [measures.stability for _, _, measures in found],
        ),
        points,
        place,
    )


def _held(logits: Floats, measures: Measures, frame: Frame, place: Place, options: EverythingOptions) -> LogitMask:
    rows, columns = measures.support
    # A copy in any case, so that the chunk's other logits can go.
    block = logits[rows, columns] - np.float32(options.mask_threshold)
    height, width = logits.shape
    return LogitMask(block, (rows.start, columns.start), (height, width), frame, place)
