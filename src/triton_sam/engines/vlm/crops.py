"""The part of an image that a processor shows to its model, and boxes back in original pixels. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of the original that the model sees: left, top, width and height in original pixels.

    It may be larger than the image if the processor adds a border; image_width and image_height bound boxes.
    """

    left: float
    top: float
    width: float
    height: float
    image_width: int
    image_height: int

    @classmethod
    def of(cls, processor: Any, size: tuple[int, int]) -> Crop:
        """For an image processor of transformers that resizes (to a square, or by the shorter side), then crops."""
        width, height = size
        scale_x = scale_y = 1.0
        if processor.do_resize:
            wanted = _sizes(processor.size)
            if "shortest_edge" in wanted:
                scale_x = scale_y = wanted["shortest_edge"] / min(width, height)
            else:
                scale_x, scale_y = wanted["width"] / width, wanted["height"] / height
        seen_width, seen_height = width * scale_x, height * scale_y
        if getattr(processor, "do_center_crop", False):
            cropped = _sizes(processor.crop_size)
            seen_width, seen_height = cropped["width"], cropped["height"]
        seen_width, seen_height = seen_width / scale_x, seen_height / scale_y
        return cls((width - seen_width) / 2, (height - seen_height) / 2, seen_width, seen_height, width, height)

    def to_original(self, box: Sequence[float]) -> list[float] | None:
        """x0, y0, x1, y1 as fractions of what the model sees -> original pixels, clipped to the image and sorted.

        None if the box is outside the image.
        """
        left, right = sorted(_between(self.left + x * self.width, self.image_width) for x in box[0::2])
        top, bottom = sorted(_between(self.top + y * self.height, self.image_height) for y in box[1::2])
        return [left, top, right, bottom] if left < right and top < bottom else None

    def point_to_original(self, x: float, y: float) -> list[float] | None:
        """x, y as fractions of what the model sees -> original pixels; None if the point is outside the image."""
        at_x, at_y = self.left + x * self.width, self.top + y * self.height
        if not (0 <= at_x <= self.image_width and 0 <= at_y <= self.image_height):
            return None
        return [_between(at_x, self.image_width), _between(at_y, self.image_height)]

    @classmethod
    def whole(cls, size: tuple[int, int]) -> Crop:
        """For a model that sees the whole image, however it resizes it."""
        return cls(0.0, 0.0, float(size[0]), float(size[1]), *size)

    @property
    def seen(self) -> tuple[int, int, int, int]:
        """left, top, right, bottom in whole original pixels: at least all of the image that the model sees."""
        return (
            max(0, math.floor(self.left)),
            max(0, math.floor(self.top)),
            min(self.image_width, math.ceil(self.left + self.width)),
            min(self.image_height, math.ceil(self.top + self.height)),
        )


def keeps_ratio(processor: Any) -> bool:
    """Whether an image processor fits the shorter side of an image, however long the other one becomes."""
    return bool(processor.do_resize) and "shortest_edge" in _sizes(processor.size)


def _sizes(size: Any) -> dict[str, float]:
    """``shortest_edge``, or ``height`` and ``width``, from the types that versions of transformers use."""
    names = ("shortest_edge", "height", "width")
    pairs = ((name, size.get(name)) for name in names)
    return {name: float(value) for name, value in pairs if value is not None}


def _between(value: float, limit: int) -> float:
    return round(min(max(value, 0.0), float(limit)), 2)
