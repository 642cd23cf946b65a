"""Small pictures of some images with their masks, as text for a page."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from PIL import Image

from triton_sam.batch.outputs.numbering import file_name
from triton_sam.batch.outputs.overlays import drawn_masks
from triton_sam.batch.records import Item, ItemResult

_SIDE = 256
_GREY = (128, 134, 142)


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture.

    Attributes:
        name: of the image; masks: their number.
        data: a data URI.
        has_picture: false if the image could not be read, and its masks are drawn on grey.
    """

    name: str
    masks: int
    width: int
    height: int
    data: str
    has_picture: bool


def thumbnails(samples: Iterable[ItemResult], picture: Callable[[Item], Image.Image] | None) -> list[Thumbnail]:
    """One for each result.

    Args:
        picture: of an item, upright.
    """
    return [_thumbnail(result, picture) for result in samples]


def _thumbnail(result: ItemResult, picture: Callable[[Item], Image.Image] | None) -> Thumbnail:
    found = None
    # Whatever is wrong with a file by now: the report tells about thousands of others.
    with contextlib.suppress(Exception):
        found = None if picture is None else picture(result.item).convert("RGB")
    drawn = drawn_masks(result, found or _blank(result.width, result.height), _SIDE)
    file = io.BytesIO()
    drawn.save(file, "JPEG", quality=80, optimize=True)
    data = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    return Thumbnail(file_name(result.item), len(result.masks), *drawn.size, data, found is not None)


def _blank(width: int, height: int) -> Image.Image:
    scale = min(1.0, _SIDE / max(width, height))
    return Image.new("RGB", (max(1, round(width * scale)), max(1, round(height * scale))), _GREY)
