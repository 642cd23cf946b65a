"""A picture of discs and a decoder for it, whose masks are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.candidates import Place
from triton_sam.core.everything.driver import Decode, Find, find_with
from triton_sam.core.everything.grids import CropBox
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame, ResizePolicy

Floats = npt.NDArray[np.float32]
SIDE, LOGITS = 256, 64


@dataclass
class Discs:
    """Discs (x, y, radius), original pixels, in an image of ``width`` x ``height``.

    Attributes:
        spots: the radius of a hole in the middle of each mask, and of an island above it; 0 for none.
        calls: (crop, rows, whether with mask prompts) of each call of a decoder.
    """

    width: int
    height: int
    discs: tuple[tuple[float, float, float], ...]
    policy: ResizePolicy = ResizePolicy.SQUASH
    spots: float = 0
    calls: list[tuple[CropBox, int, bool]] = field(default_factory=list)

    def frame(self, crop: CropBox) -> Frame:
        return Frame(crop[2] - crop[0], crop[3] - crop[1], SIDE, self.policy)

    def logits(self, point: npt.ArrayLike, crop: CropBox) -> tuple[Floats, Floats]:
        """xy in pixels of the crop -> ([3,h,w], [3]): the disc there, a smaller one in it, and an unstable one."""
        frame = self.frame(crop)
        x, y = np.asarray(point, np.float64) + crop[:2]
        cells = (np.stack(np.meshgrid(*[np.arange(LOGITS)] * 2), axis=-1) + 0.5) * (SIDE / LOGITS)
        places = frame.to_original(cells) + np.array(crop[:2])
        at = next((disc for disc in self.discs if (disc[0] - x) ** 2 + (disc[1] - y) ** 2 <= disc[2] ** 2), None)
        if at is None:
            return np.full((3, LOGITS, LOGITS), -9, np.float32), np.zeros(3, np.float32)
        away = np.hypot(places[..., 0] - at[0], places[..., 1] - at[1])
        inward = at[2] - away
        if self.spots:
            above = self.spots - np.hypot(places[..., 0] - at[0], places[..., 1] - at[1] + at[2] + 2 * self.spots)
            inward = np.maximum(np.minimum(inward, away - self.spots), above)
        masks = np.stack([inward * 10, (inward - at[2] * 0.5) * 10, inward * 0.1])
        # Points near the centre are the surest, so that the order of scores is not that of the grid.
        sure = 0.01 * np.hypot(at[0] - x, at[1] - y) / at[2]
        return masks.clip(-32, 32).astype(np.float32), np.array([0.97, 0.9, 0.95], np.float32) - np.float32(sure)

    def decoder(self, crop: CropBox) -> Decode:
        def decode(points: Floats, *, multimask: bool, mask_input: Floats | None = None) -> tuple[Floats, Floats]:
            self.calls.append((crop, len(points), mask_input is not None))
            if mask_input is not None:
                # Refined: a mask becomes its own sharper self.
                return np.clip(mask_input[:, None] * 3, -32, 32), np.full((len(points), 1), 0.9, np.float32)
            found = [self.logits(point, crop) for point in points]
            last = 3 if multimask else 1
            return np.stack([masks[:last] for masks, _ in found]), np.stack([scores[:last] for _, scores in found])

        return decode

    def open(self, options: EverythingOptions, most_rows: int = 64) -> _Open:
        return _Open(self, options, most_rows)


@dataclass
class _Open:
    discs: Discs
    options: EverythingOptions
    most_rows: int

    def __call__(self, crop: CropBox) -> Find:
        place = Place(crop, self.discs.width, self.discs.height)
        return find_with(self.discs.decoder(crop), self.discs.frame(crop), place, self.options, self.most_rows)
