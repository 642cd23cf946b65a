"""A short clip whose masks are known: a cup, cut out of the sample photograph, moves through another photograph.

It is drawn by code, the same each time. The cup turns and grows, the background moves too, and a low wall in front
of both hides the lower part of the cup for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from triton_sam.core.samples import sample_photograph

FRAMES, WIDTH, HEIGHT, RATE = 40, 640, 360, 10.0
#: The one click, x and y in the first frame: on the far wall of the cup.
CLICK = (142.0, 172.0)
#: The cup in the sample photograph: its rim, an ellipse (x0, y0, x1, y1), its body and its handle.
_RIM = (173, 18, 408, 208)
_BODY = ((174, 125), (180, 170), (197, 212), (220, 240), (256, 278), (300, 284), (330, 268), (372, 222), (398, 165))
_HANDLE = ((226, 226), (258, 236), (262, 262), (246, 290), (222, 308), (200, 300), (197, 274), (207, 247))
_BACKGROUND, _WALL = "motorcycle_left.png", "brick.png"
#: x0, y0, x1, y1
_WALL_PLACE = (300, 170, 440, HEIGHT)
_WALL_COLOUR = (0.92, 0.82, 0.72)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnFrame:
    """One frame, mode RGB, and what is visible of the cup in it: [H,W]."""

    picture: Image.Image
    mask: npt.NDArray[np.bool_]


def drawn_frames() -> Iterator[DrawnFrame]:
    """The clip; SetupError if the photographs are not installed."""
    cup, behind, wall = _cup(), _photograph(_BACKGROUND), _wall()
    for number in range(FRAMES):
        share = number / (FRAMES - 1)
        picture = _background(behind, share)
        placed = _placed(cup, share)
        picture.paste(placed, (0, 0), placed)
        picture.paste(wall, _WALL_PLACE)
        mask = np.asarray(placed.getchannel("A")) > 127
        mask[_WALL_PLACE[1] :, _WALL_PLACE[0] : _WALL_PLACE[2]] = False
        yield DrawnFrame(picture, mask)


def _photograph(name: str) -> Image.Image:
    with Image.open(sample_photograph(name)) as image:
        photograph: Image.Image = image.convert("RGB")
    return photograph


def _cup() -> Image.Image:
    """RGBA, the cup alone."""
    with Image.open(sample_photograph()) as image:
        cup = image.convert("RGBA")
    shape = Image.new("L", cup.size)
    draw = ImageDraw.Draw(shape)
    draw.ellipse(_RIM, fill=255)
    draw.polygon(_BODY, fill=255)
    draw.polygon(_HANDLE, fill=255)
    cup.putalpha(shape.filter(ImageFilter.GaussianBlur(1)))
    alone: Image.Image = cup.crop((165, 10, 416, 316))
    return alone


def _wall() -> Image.Image:
    left, top, right, bottom = _WALL_PLACE
    bricks = _photograph(_WALL).resize((HEIGHT, HEIGHT)).crop((0, 0, right - left, bottom - top))
    bands = [
        band.point(lambda value, part=part: value * part)
        for band, part in zip(bricks.split(), _WALL_COLOUR, strict=True)
    ]
    return Image.merge("RGB", bands)


def _background(photograph: Image.Image, share: float) -> Image.Image:
    """A window that moves over the photograph and grows a little."""
    width = 560 + 60 * share
    height = width * HEIGHT / WIDTH
    left, top = 20 + 90 * share, 40 + 60 * math.sin(math.pi * share)
    box = (left, top, left + width, top + height)
    shown: Image.Image = photograph.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box)
    return shown


def _placed(cup: Image.Image, share: float) -> Image.Image:
    """RGBA of the frame's size: the cup at its place."""
    scale = 0.5 + 0.12 * share
    angle = math.radians(-14 + 34 * share)
    x, y = 130 + 400 * share, 225 - 70 * math.sin(math.pi * share)
    # From the frame's pixels back to those of the cut-out, around its centre.
    cosine, sine = math.cos(angle) / scale, math.sin(angle) / scale
    middle = cup.width / 2, cup.height / 2
    matrix = (
        *(cosine, sine, middle[0] - cosine * x - sine * y),
        *(-sine, cosine, middle[1] + sine * x - cosine * y),
    )
    return cup.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
