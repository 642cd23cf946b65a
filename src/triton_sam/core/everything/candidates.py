"""Candidates: masks with their numbers, before it is known which ones stay.

An engine hands them over in one of two ways. A CPU gives low-resolution logits, which
:mod:`~triton_sam.core.everything.filtering` measures. A GPU measures and filters by itself, and gives the numbers with
masks that stay in its memory (:mod:`~triton_sam.core.everything.held`), or packed bits. Pixels and run lengths are made
only for masks that stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.boxes import Boxes
from triton_sam.core.everything.grids import CropBox
from triton_sam.core.everything.held import HeldMask, encode_held
from triton_sam.core.geometry import Frame
from triton_sam.core.masks import full_size, full_size_rle, unpack_bits
from triton_sam.core.rle import BoolArray, from_rle, rle, rle_of_bits

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a crop lies in its image, original pixels."""

    crop: CropBox
    width: int
    height: int

    @property
    def is_whole(self) -> bool:
        return self.crop == (0, 0, self.width, self.height)

    def paste(self, mask: BoolArray) -> BoolArray:
        """[h,w] of the crop -> [H,W] of the image."""
        if self.is_whole:
            return mask
        x0, y0, x1, y1 = self.crop
        pasted = np.zeros((self.height, self.width), np.bool_)
        pasted[y0:y1, x0:x1] = mask
        return pasted


class Mask(Protocol):
    """One mask of the whole image, in whatever form it is held."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""

    def rle(self) -> dict[str, Any]:
        """COCO's RLE, ``{"size": [H, W], "counts": str}``."""

    def pixels(self) -> BoolArray:
        """[H,W] bool, original pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class LogitMask:
    """The part of low-resolution logits that can be above 0, and where it stands.

    Attributes:
        block: [h,w] float32, already less the threshold.
        corner: (row, column) of the block in the logits of the model's square; side: (rows, columns) of these.
        frame: of the crop.
    """

    block: Floats
    corner: tuple[int, int]
    side: tuple[int, int]
    frame: Frame
    place: Place

    @property
    def nbytes(self) -> int:
        return self.block.nbytes

    def _logits(self) -> Floats:
        # What was cut off is background at any value below 0: no pixel near it is made of a logit above 0.
        logits = np.full(self.side, -1, np.float32)
        (row, column), (height, width) = self.corner, self.block.shape
        logits[row : row + height, column : column + width] = self.block
        return logits

    def rle(self) -> dict[str, Any]:
        if self.place.is_whole:
            data: dict[str, Any] = full_size_rle(self._logits(), self.frame)["data"]
            return data
        return rle(self.pixels())

    def pixels(self) -> BoolArray:
        return self.place.paste(full_size(self._logits(), self.frame))


@dataclass(frozen=True, slots=True, eq=False)
class PackedMask:
    """Rows of a crop in packed bits, first pixel in the highest bit, [h,ceil(w/8)] uint8."""

    packed: npt.NDArray[np.uint8]
    place: Place

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def rle(self) -> dict[str, Any]:
        return rle_of_bits(self.packed, self.place.width) if self.place.is_whole else rle(self.pixels())

    def pixels(self) -> BoolArray:
        return self.place.paste(unpack_bits(self.packed[None], self.place.crop[2] - self.place.crop[0])[0])


@dataclass(frozen=True, slots=True, eq=False)
class RunMask:
    """Run lengths of the whole image."""

    document: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return len(self.document["counts"])

    def rle(self) -> dict[str, Any]:
        return self.document

    def pixels(self) -> BoolArray:
        return from_rle(self.document)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N masks and their numbers.

    Attributes:
        masks: N.
        areas: [N] int64, original pixels.
        boxes: [N,4] int64, see :mod:`~triton_sam.core.everything.boxes`, original pixels of the whole image.
        predicted_ious, stability_scores: [N] float32.
        points: [N,2] float64, the prompt, xy in original pixels.
        crops: [N,4] int64, x0, y0, x1, y1 of the crop each was found in.
    """

    masks: tuple[Mask, ...]
    areas: npt.NDArray[np.int64]
    boxes: Boxes
    predicted_ious: Floats
    stability_scores: Floats
    points: npt.NDArray[np.float64]
    crops: Boxes

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def nbytes(self) -> int:
        return sum(mask.nbytes for mask in self.masks)

    @property
    def has_run_lengths(self) -> bool:
        """Whether none of its masks' run lengths is still to be made."""
        return all(isinstance(mask, RunMask) or (isinstance(mask, HeldMask) and mask.is_encoded) for mask in self.masks)

    def take(self, indices: npt.ArrayLike) -> Candidates:
        """Those at ``indices``, in this order."""
        at = np.asarray(indices, dtype=np.intp)
        return Candidates(
            tuple(self.masks[index] for index in at),
            self.areas[at],
            self.boxes[at],
            self.predicted_ious[at],
            self.stability_scores[at],
            self.points[at],
            self.crops[at],
        )

    def settled(self) -> Candidates:
        """The same with their masks as run lengths, which are small."""
        encode_held(self.masks)
        masks = tuple(mask if isinstance(mask, RunMask) else RunMask(mask.rle()) for mask in self.masks)
        return self.with_masks(masks, self.areas, self.boxes)

    def with_masks(self, masks: tuple[Mask, ...], areas: npt.NDArray[np.int64], boxes: Boxes) -> Candidates:
        """The same with other masks, and what depends on them."""
        return Candidates(masks, areas, boxes, self.predicted_ious, self.stability_scores, self.points, self.crops)


NONE = Candidates(
    (),
    np.zeros(0, np.int64),
    np.zeros((0, 4), np.int64),
    np.zeros(0, np.float32),
    np.zeros(0, np.float32),
    np.zeros((0, 2)),
    np.zeros((0, 4), np.int64),
)


def joined(parts: Sequence[Candidates]) -> Candidates:
    """All of several, in order."""
    if not parts:
        return NONE
    if len(parts) == 1:
        return parts[0]
    return Candidates(
        tuple(mask for part in parts for mask in part.masks),
        np.concatenate([part.areas for part in parts]),
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.predicted_ious for part in parts]),
        np.concatenate([part.stability_scores for part in parts]),
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.crops for part in parts]),
    )
