"""Everything in an image as published: a straight loop over a decoder, with every mask at its full size.

Written from the definition of Meta's automatic mask generators, and independent of the package on purpose: nothing of
triton_sam is imported here, and nothing is clever.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.integration.reference import bilinear

#: One point [2] xy in pixels of a crop, multimask, logits [h,w] of a mask prompt or None -> ([M,h,w], [M]).
Decode = Callable[[np.ndarray, bool, "np.ndarray | None"], tuple[np.ndarray, np.ndarray]]
CropBox = tuple[int, int, int, int]
DEFAULTS: dict[str, Any] = {
    "points_per_side": 32,
    "pred_iou_thresh": 0.8,
    "stability_score_thresh": 0.95,
    "stability_score_offset": 1.0,
    "mask_threshold": 0.0,
    "box_nms_thresh": 0.7,
    "crop_n_layers": 0,
    "crop_nms_thresh": 0.7,
    "crop_overlap_ratio": 512 / 1500,
    "crop_n_points_downscale_factor": 1,
    "min_mask_region_area": 0,
    "multimask_output": True,
    "use_m2m": False,
}


@dataclass
class Found:
    """One mask: [H,W] bool of the whole image, and its record's numbers; boxes are x0, y0, x1, y1, inclusive."""

    mask: np.ndarray
    box: list[int]
    predicted_iou: float
    stability_score: float
    point: list[float]
    crop: CropBox

    @property
    def area(self) -> int:
        return int(self.mask.sum())


def everything(
    width: int, height: int, open_crop: Callable[[CropBox], Decode], *, padded_side: int | None = None, **options: Any
) -> list[Found]:
    """All masks of a ``width`` x ``height`` image.

    Args:
        open_crop: a crop -> its decoder.
        padded_side: the model's side if it pads images to a square (SAM 1); None if it squashes them.
    """
    wanted = DEFAULTS | options
    crops = published_crop_boxes(width, height, wanted["crop_n_layers"], wanted["crop_overlap_ratio"])
    found: list[Found] = []
    for layer, crop in crops:
        x0, y0, x1, y1 = crop
        decode = open_crop(crop)
        side = int(wanted["points_per_side"] / wanted["crop_n_points_downscale_factor"] ** layer)
        of_crop: list[Found] = []
        for share in published_point_grid(side):
            point = share * (x1 - x0, y1 - y0)
            of_crop += masks_of_point(point, decode, crop, (width, height), padded_side, wanted)
        scores = [one.predicted_iou for one in of_crop]
        found += [of_crop[at] for at in naive_nms([one.box for one in of_crop], scores, wanted["box_nms_thresh"])]
    if len(crops) > 1:
        sizes = [1 / ((one.crop[2] - one.crop[0]) * (one.crop[3] - one.crop[1])) for one in found]
        found = [found[at] for at in naive_nms([one.box for one in found], sizes, wanted["crop_nms_thresh"])]
    if wanted["min_mask_region_area"]:
        found = cleaned(found, wanted)
    return found


def masks_of_point(
    point: np.ndarray,
    decode: Decode,
    crop: CropBox,
    size: tuple[int, int],
    padded_side: int | None,
    wanted: dict[str, Any],
) -> list[Found]:
    logits, ious = decode(point, wanted["multimask_output"], None)
    if wanted["use_m2m"]:
        again = [decode(point, False, mask) for mask in logits]
        logits, ious = np.concatenate([masks for masks, _ in again]), np.concatenate([scores for _, scores in again])
    found = []
    for low_resolution, iou in zip(logits, ious, strict=True):
        if wanted["pred_iou_thresh"] > 0 and not iou > wanted["pred_iou_thresh"]:
            continue
        full = upsampled(low_resolution, crop[2] - crop[0], crop[3] - crop[1], padded_side)
        threshold, offset = wanted["mask_threshold"], wanted["stability_score_offset"]
        union = (full > threshold - offset).sum()
        stability = (full > threshold + offset).sum() / union if union else 0.0
        if stability < wanted["stability_score_thresh"]:
            continue
        mask = full > threshold
        x0, y0, x1, y1 = box_of(mask)
        box = [x0 + crop[0], y0 + crop[1], x1 + crop[0], y1 + crop[1]]
        if cut_off(box, crop, size):
            continue
        whole = np.zeros((size[1], size[0]), bool)
        whole[crop[1] : crop[3], crop[0] : crop[2]] = mask
        place = [float(point[0] + crop[0]), float(point[1] + crop[1])]
        found.append(Found(whole, box, float(iou), float(stability), place, crop))
    return found


def upsampled(logits: np.ndarray, width: int, height: int, padded_side: int | None) -> np.ndarray:
    if padded_side is None:
        return bilinear(logits, width, height)
    square = bilinear(logits, padded_side, padded_side)
    scale = padded_side / max(width, height)
    inner_width, inner_height = (max(1, int(side * scale + 0.5)) for side in (width, height))
    return bilinear(square[:inner_height, :inner_width], width, height)


def box_of(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [0, 0, 0, 0] if not len(rows) else [int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])]


def cut_off(box: list[int], crop: CropBox, size: tuple[int, int]) -> bool:
    """Whether an edge of the box is within 20 pixels of the crop's but not of the image's."""
    image = (0, 0, *size)
    return any(abs(box[i] - crop[i]) <= 20 and not abs(box[i] - image[i]) <= 20 for i in range(4))


def published_point_grid(side: int) -> np.ndarray:
    """[side * side,2] xy, shares of 1."""
    offset = 1 / (2 * side)
    line = np.linspace(offset, 1 - offset, side)
    return np.array([(x, y) for y in line for x in line])


def published_crop_boxes(width: int, height: int, layers: int, ratio: float) -> list[tuple[int, CropBox]]:
    boxes: list[tuple[int, CropBox]] = [(0, (0, 0, width, height))]
    for layer in range(layers):
        per_side = 2 ** (layer + 1)
        overlap = int(ratio * min(width, height) * (2 / per_side))
        crop_width = math.ceil((overlap * (per_side - 1) + width) / per_side)
        crop_height = math.ceil((overlap * (per_side - 1) + height) / per_side)
        lefts = [int((crop_width - overlap) * i) for i in range(per_side)]
        tops = [int((crop_height - overlap) * i) for i in range(per_side)]
        for x0, y0 in itertools.product(lefts, tops):
            boxes.append((layer + 1, (x0, y0, min(x0 + crop_width, width), min(y0 + crop_height, height))))
    return boxes


def naive_nms(boxes: list[list[int]], scores: list[float], threshold: float) -> list[int]:
    """Indices that stay, by falling score."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda at: -scores[at]):
        if all(not box_iou(boxes[index], boxes[other]) > threshold for other in kept):
            kept.append(index)
    return kept


def box_iou(first: list[int], second: list[int]) -> float:
    across = max(0, min(first[2], second[2]) - max(first[0], second[0]))
    down = max(0, min(first[3], second[3]) - max(first[1], second[1]))
    both = across * down
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    union = sum(areas) - both
    return both / union if union else 0.0


def cleaned(found: list[Found], wanted: dict[str, Any]) -> list[Found]:
    is_same = []
    for one in found:
        without_holes = ~without_small(~one.mask, wanted["min_mask_region_area"], keep_largest=False)
        after = without_small(without_holes, wanted["min_mask_region_area"], keep_largest=True)
        is_same.append(float((after == one.mask).all()))
        one.mask, one.box = after, box_of(after)
    threshold = max(wanted["box_nms_thresh"], wanted["crop_nms_thresh"])
    return [found[at] for at in naive_nms([one.box for one in found], is_same, threshold)]


def without_small(mask: np.ndarray, size: int, *, keep_largest: bool) -> np.ndarray:
    """[H,W] bool without its regions, connected by edges or corners, of fewer than ``size`` pixels."""
    regions = []
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(mask), strict=True)}
    while left:
        queue = deque([left.pop()])
        region = []
        while queue:
            row, column = queue.popleft()
            region.append((row, column))
            for near in itertools.product((row - 1, row, row + 1), (column - 1, column, column + 1)):
                if near in left:
                    left.remove(near)
                    queue.append(near)
        regions.append(region)
    kept = [region for region in regions if len(region) >= size]
    if not kept and keep_largest and regions:
        kept = [max(regions, key=len)]
    result = np.zeros_like(mask)
    for region in kept:
        rows, columns = zip(*region, strict=True)
        result[list(rows), list(columns)] = True
    return result


@dataclass(frozen=True)
class Agreement:
    """How two sets of masks agree: pairs are matched by falling IoU, from 0.5 on."""

    ious: list[float]
    only_first: int
    only_second: int

    @property
    def mean_iou(self) -> float:
        return float(np.mean(self.ious)) if self.ious else 1.0

    @property
    def unmatched(self) -> float:
        """The larger share of masks without a partner."""
        pairs = len(self.ious)
        shares = [alone / (alone + pairs) for alone in (self.only_first, self.only_second) if alone]
        return max(shares, default=0.0)

    def __str__(self) -> str:
        alone = f"{self.only_first} and {self.only_second} alone"
        return f"{len(self.ious)} pairs, mean IoU {self.mean_iou:.5f}, {alone}"


def agreement(first: list[np.ndarray], second: list[np.ndarray]) -> Agreement:
    """Two lists of [H,W] bool."""
    pairs = []
    for (one, mask), (other, partner) in itertools.product(enumerate(first), enumerate(second)):
        both = int((mask & partner).sum())
        if both:
            pairs.append((both / int((mask | partner).sum()), one, other))
    ious = []
    taken: tuple[set[int], set[int]] = (set(), set())
    for iou, one, other in sorted(pairs, reverse=True):
        if iou >= 0.5 and one not in taken[0] and other not in taken[1]:
            ious.append(iou)
            taken[0].add(one)
            taken[1].add(other)
    return Agreement(ious, len(first) - len(ious), len(second) - len(ious))
