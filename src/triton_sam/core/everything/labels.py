"""All masks in one label image."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.rle import runs

#: uint8, uint16 or uint32.
Labels = npt.NDArray[Any]


def label_type(count: int) -> type[np.unsignedinteger[Any]]:
    """uint8 for up to 255 masks, uint16 for up to 65,535, else uint32."""
    return np.uint8 if count < 2**8 else np.uint16 if count < 2**16 else np.uint32


def label_image(masks: Sequence[Mapping[str, Any]], width: int, height: int) -> Labels:
    """COCO RLEs -> [H,W]: 0 for background, ``i + 1`` for mask ``i``.

    Where masks overlap, the smaller one is on top; of equal ones, the earlier.
    """
    painted: Labels = np.zeros(width * height, label_type(len(masks)))  # down the columns, as runs go
    lengths = [runs(mask) for mask in masks]
    areas = np.array([counts[1::2].sum() for counts in lengths])
    # From the last of the largest to the first of the smallest.
    for index in np.argsort(areas, kind="stable")[::-1].tolist():
        ends = np.cumsum(lengths[index])
        for start, end in zip(ends[0:-1:2].tolist(), ends[1::2].tolist(), strict=True):
            painted[start:end] = index + 1
    return np.ascontiguousarray(painted.reshape(width, height).T)


def label_png(labels: Labels) -> bytes:
    """[H,W] labels -> a PNG: 8-bit grey, 16-bit grey or, for uint32, RGB with the label R + 256 G + 65536 B."""
    if labels.dtype == np.uint32:
        picture = Image.fromarray(np.stack([labels >> shift & 0xFF for shift in (0, 8, 16)], axis=2).astype(np.uint8))
    else:
        picture = Image.fromarray(labels)
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def encoded_labels(masks: Sequence[Mapping[str, Any]], width: int, height: int) -> dict[str, Any]:
    """The JSON form of :func:`label_image`: ``{"encoding": "labels", "width", "height", "data"}``, base64 of a PNG."""
    data = base64.b64encode(label_png(label_image(masks, width, height))).decode("ascii")
    return {"encoding": "labels", "width": width, "height": height, "data": data}
