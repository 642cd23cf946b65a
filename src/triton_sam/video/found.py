"""What was found in one frame of a video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.labels import Labels, label_image, label_type
from triton_sam.core.rle import BoolArray, from_rle


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One object in one frame.

    Attributes:
        rle: its mask as COCO's ``{"size": [H, W], "counts": str}``.
        score: the model's estimate of the mask's IoU.
        appearance: above 0 if the object is there.
    """

    rle: Mapping[str, Any]
    score: float
    appearance: float


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """What is known of one frame.

    Attributes:
        index: of the frame.
        seconds: when it is shown; None if the clip has no times.
        objects: by object; those without a mask in the frame are left out.
        size: (width, height) of the masks.
    """

    index: int
    seconds: float | None
    objects: Mapping[int, FoundObject]
    size: tuple[int, int]

    def masks(self, obj_ids: Sequence[int]) -> BoolArray:
        """[O,1,H,W] of these objects; empty for those without a mask."""
        width, height = self.size
        masks = np.zeros((len(obj_ids), 1, height, width), np.bool_)
        for place, obj_id in enumerate(obj_ids):
            found = self.objects.get(obj_id)
            if found is not None:
                masks[place, 0] = from_rle(found.rle)
        return masks

    def labels(self, values: Mapping[int, int]) -> Labels:
        """[H,W]: 0 for background, else the value of the object; where masks overlap, the smaller one is on top.

        Args:
            values: object -> its value, from 1 on. Others are left out.
        """
        shown = [obj_id for obj_id in self.objects if obj_id in values]
        plain = label_image([self.objects[obj_id].rle for obj_id in shown], *self.size)
        table: npt.NDArray[Any] = np.zeros(len(shown) + 1, label_type(max(values.values(), default=0)))
        table[1:] = [values[obj_id] for obj_id in shown]
        return table[plain]
