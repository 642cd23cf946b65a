"""A label image for each image of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, PngImagePlugin

from triton_sam.batch.records import ItemResult
from triton_sam.core.everything.labels import Labels, label_image
from triton_sam.errors import InvalidInput
from triton_sam.files import whole_file

LABEL_FORMATS = ("png", "tiff16", "tiff32")
_MOST_OF_16_BITS = 2**16 - 1


class LabelWriter:
    """Writes pixels with the number of their mask, from 1 on in the order of the result; smaller masks lie on top.

    A PNG has 8 bits up to 255 masks and 16 beyond. An image without masks is all zeros.
    """

    def __init__(self, folder: Path, label_format: str = "png") -> None:
        self._folder = folder
        self._format = label_format

    def write(self, result: ItemResult, data: Callable[[], bytes]) -> Path:
        del data  # the size is the result's
        count = len(result.masks)
        if count > _MOST_OF_16_BITS and self._format != "tiff32":
            raise InvalidInput(
                f"{result.item.name} has {count:,} masks, and a label image as {self._format} holds "
                f"{_MOST_OF_16_BITS:,}: choose tiff32 for label images"
            )
        labels = label_image([mask.segmentation for mask in result.masks], result.width, result.height)
        suffix, save = (".png", _save_png) if self._format == "png" else (".tif", _save_tiff)
        if self._format != "png":
            labels = labels.astype(np.uint16 if self._format == "tiff16" else np.uint32)
        path = self._folder / f"{result.item.stem}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            save(labels, file)
        return path


def _save_png(labels: Labels, file: IO[bytes]) -> None:
    about = PngImagePlugin.PngInfo()
    # By this text the web page knows a dropped file as a label image, whatever its name.
    about.add_text("labels", "{}")
    Image.fromarray(labels).save(file, "PNG", compress_level=1, pnginfo=about)


def _save_tiff(labels: Labels, file: IO[bytes]) -> None:
    import tifffile  # slow to import

    # Deflate is what tifffile writes and reads without imagecodecs. One thread: several images are written at once.
    tifffile.imwrite(
        file, labels, photometric="minisblack", compression="zlib", metadata=None, software="triton-sam", maxworkers=1
    )
