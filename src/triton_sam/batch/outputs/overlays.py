"""A picture with its masks drawn over it, for each image of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.batch.records import ItemResult
from triton_sam.core.everything.labels import label_image
from triton_sam.core.image_choice import ImageChoice, picture_for_model
from triton_sam.core.label_overlay import label_overlay
from triton_sam.files import whole_file

#: Of the longer side, in pixels.
LONGEST_SIDE = 2048


class OverlayWriter:
    """Writes JPEGs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, result: ItemResult, data: Callable[[], bytes]) -> Path:
        picture = picture_for_model(data(), ImageChoice())
        drawn = drawn_masks(result, picture, LONGEST_SIDE)
        path = self._folder / f"{result.item.stem}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            drawn.save(file, "JPEG", quality=90)
        return path


def drawn_masks(result: ItemResult, picture: Image.Image, longest: int) -> Image.Image:
    """The picture with the masks of its result, mode RGB, made smaller where its longer side has more pixels."""
    small = picture.convert("RGB")
    small.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    labels = label_image([mask.segmentation for mask in result.masks], result.width, result.height)
    rows, columns = _middles(result.height, small.height), _middles(result.width, small.width)
    return label_overlay(small, labels[rows[:, None], columns])


def _middles(count: int, wanted: int) -> npt.NDArray[np.int64]:
    """[wanted] the nearest of ``count`` pixels to the centre of each."""
    return (2 * np.arange(wanted) + 1) * count // (2 * wanted)
