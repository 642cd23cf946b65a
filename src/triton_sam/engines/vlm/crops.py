"""Which part of an image a processor shows to its model, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of the original that the model sees: left, top, width and height in original pixels.

    It may be larger than the image, where the processor adds a border; image_width and image_height bound boxes.
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

    def to_original(self, box: Sequence[float]) -> list[float]:
        """x0, y0, x1, y1 as shares of what the model sees -> original pixels, inside the image."""
        x0, y0, x1, y1 = box
        return [
            _between(self.left + x0 * self.width, self.image_width),
            _between(self.top + y0 * self.height, self.image_height),
            _between(self.left + x1 * self.width, self.image_width),
            _between(self.top + y1 * self.height, self.image_height),
        ]


def _sizes(size: Any) -> dict[str, float]:
    """``shortest_edge``, or ``height`` and ``width``, from whatever a version of transformers keeps them in."""
    names = ("shortest_edge", "height", "width")
    pairs = ((name, size.get(name)) for name in names)
    return {name: float(value) for name, value in pairs if value is not None}


def _between(value: float, limit: int) -> float:
    return round(min(max(value, 0.0), float(limit)), 2)
