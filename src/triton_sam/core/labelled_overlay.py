"""Draws masks over a picture with the words for them, and the boxes or points that they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from triton_sam.core.masks import overlay, overlay_colour
from triton_sam.core.rle import BoolArray

#: Longer labels are cut: a phrase may be a whole sentence.
_LONGEST_LABEL = 48
#: Share of the longer side of the picture.
_TEXT_SHARE = 1 / 45
_SMALLEST_TEXT = 10


def labelled_overlay(
    picture: Image.Image,
    masks: BoolArray,
    labels: Sequence[str],
    boxes: Sequence[Sequence[float] | None],
    points: Sequence[Sequence[float] | None],
) -> Image.Image:
    """The picture with each mask tinted in its own colour and named in it.

    Args:
        picture: the original; masks: [N,H,W] of its size.
        boxes: [N] x0, y0, x1, y1, points: [N] x, y, in original pixels; None for those without one.
    """
    dots = [(point[0], point[1], 1) for point in points if point is not None]
    result = overlay(picture, masks, dots)
    pen = ImageDraw.Draw(result)
    size = max(_SMALLEST_TEXT, round(max(result.size) * _TEXT_SHARE))
    font = label_font(size)
    for index, (label, box, point) in enumerate(zip(labels, boxes, points, strict=True)):
        colour = overlay_colour(index)
        if box is not None:
            pen.rectangle([round(side) for side in box], outline=colour, width=max(1, size // 8))
        corner = box[:2] if box is not None else point
        if corner is not None:
            draw_label(pen, result.size, label, corner, colour, font)
    return result


def label_font(size: int) -> Any:
    """Pillow's own font, letters about as high as ``size`` pixels."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow 10.0, or one without FreeType: small letters of one size
        return ImageFont.load_default()


def draw_label(
    pen: ImageDraw.ImageDraw,
    size: tuple[int, int],
    label: str,
    corner: Sequence[float],
    colour: tuple[int, int, int],
    font: Any,
) -> None:
    """Words on the colour, above the corner if there is room, and always inside the picture."""
    text = " ".join(label.split())
    text = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if isinstance(font, ImageFont.ImageFont):
        text = text.encode("latin-1", "replace").decode("latin-1")
    if not text:
        return
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    pad = max(2, round((bottom - top) / 4))
    width, height = right - left + 2 * pad, bottom - top + 2 * pad
    x = min(max(0, corner[0]), max(0, size[0] - width))
    y = corner[1] - height if corner[1] >= height else corner[1]
    y = min(max(0, y), max(0, size[1] - height))
    pen.rectangle([x, y, x + width, y + height], fill=colour)
    pen.text((x + pad - left, y + pad - top), text, fill=_readable_on(colour), font=font)


def _readable_on(colour: tuple[int, int, int]) -> str:
    red, green, blue = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "white"
