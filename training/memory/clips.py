"""The clips that the memory is judged by: 24 clips of 60 frames, each known by its number alone.

They were fixed before anything was trained, and training uses none of their photographs and textures. Objects are
cut-outs of scikit-image's photographs along committed outlines, and shapes filled with its textures or with colours.
They move, grow, shrink and turn over a moving background, beside others. In every third clip the object is hidden
completely for five frames or more, and something that looks like it is in the picture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

from triton_sam.core.samples import sample_photograph

CLIPS, FRAMES, WIDTH, HEIGHT = 24, 60, 640, 360
_SEED = 2026
_CUTOUTS = ("coin1", "head", "helmet", "shuttle", "cup", "gland", "motorcycle", "coin3")
_ALONE = ("man", "cat", "saucer", "rocket", "cell", "head", "cup", "motorcycle")
_LOOK_ALIKES = {"coin1": "coin2", "coin3": "coin4"}
_SHAPES = ("blob", "star", "polygon", "ellipse")
_TEXTURES = ("brick.png", "grass.png", "gravel.png")
_BACKGROUNDS = ("retina.jpg", "ihc.png", "moon.png", "hubble_deep_field.jpg", "motorcycle_right.png", *_TEXTURES)
#: Side of the drawn shapes, and the longer side of an object in the picture.
_DRAWN, _LEAST_SIZE, _MOST_SIZE = 256, 90, 150
#: Frames that an occluder takes to come, and to go.
_APPROACH = 9

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Clip:
    """One clip.

    Attributes:
        frames: [T,H,W,3] RGB.
        masks: [T,H,W], what is visible of the object.
        hidden: whether it is hidden completely for some frames, beside a look-alike.
    """

    name: str
    frames: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.bool_]
    hidden: bool

    def click(self) -> tuple[float, float]:
        """The pixel of the first frame's object that is farthest from its border, x and y."""
        mask = self.masks[0]
        depth, inner = np.zeros(mask.shape, np.int32), np.pad(mask, 1)
        while inner.any():
            depth += inner[1:-1, 1:-1]
            inner[1:-1, 1:-1] &= inner[:-2, 1:-1] & inner[2:, 1:-1] & inner[1:-1, :-2] & inner[1:-1, 2:]
        y, x = np.unravel_index(int(depth.argmax()), depth.shape)
        return float(x), float(y)


@dataclass(frozen=True, slots=True)
class _Path:
    """Where something is, how large and how turned: smooth functions of the time from 0 to 1."""

    centre: tuple[float, float]
    reach: tuple[float, float]
    turns: tuple[float, float]
    phases: tuple[float, float]
    size: float
    swell: float
    spin: float
    angle: float

    def place(self, time: float) -> tuple[float, float]:
        x, y = (
            centre + reach * math.sin(2 * math.pi * (turn * time + phase))
            for centre, reach, turn, phase in zip(self.centre, self.reach, self.turns, self.phases, strict=True)
        )
        return x, y

    def scale(self, time: float) -> float:
        return self.size * (1 + self.swell * math.sin(2 * math.pi * (time + self.phases[1])))

    def turned(self, time: float) -> float:
        return self.angle + self.spin * math.sin(2 * math.pi * (0.7 * time + self.phases[0]))


def evaluation_clips(numbers: range = range(CLIPS)) -> Iterator[Clip]:
    """Renders them one by one."""
    for number in numbers:
        yield evaluation_clip(number)


def evaluation_clip(number: int) -> Clip:
    """The same at every time: all numbers come from ``number``."""
    rng = np.random.default_rng([_SEED, number])
    kind, which = number % 3, number // 3
    hidden = kind == 0
    if kind == 1:
        name = f"{_SHAPES[which % len(_SHAPES)]} {which}"
        target = _shape(rng, _SHAPES[which % len(_SHAPES)], which)
    else:
        name = (_CUTOUTS if hidden else _ALONE)[which]
        target = cutout(name)
    background = _background(rng, target[1])
    path = _path(rng)
    below: list[tuple[Image.Image, _Path]] = []
    if hidden:
        twin = cutout(_LOOK_ALIKES.get(name, name))[0]
        below.append((_recoloured(rng, twin), _mirrored(path)))
    else:
        below.append((_shape(rng, _SHAPES[int(rng.integers(4))], int(rng.integers(6)))[0], _path(rng)))
    cover = _Cover.choose(rng, complete=hidden)
    frames, masks = zip(*_frames(rng, background, target[0], path, below, cover), strict=True)
    return Clip(f"{number:02d} {name}", np.array(frames), np.array(masks), hidden)


@dataclass(frozen=True, slots=True)
class _Cover:
    """Something that passes in front of the object and stays with it for some frames."""

    picture: Image.Image
    first: int
    last: int
    side: tuple[float, float]
    complete: bool

    @classmethod
    def choose(cls, rng: np.random.Generator, *, complete: bool) -> _Cover:
        first = int(rng.integers(20, 36))
        angle = float(rng.uniform(0, 2 * math.pi))
        picture = _shape(rng, "polygon" if complete else "ellipse", int(rng.integers(6)), full=complete)[0]
        last = first + int(rng.integers(6, 10))
        return cls(picture, first, last, (math.cos(angle), math.sin(angle)), complete)

    def offset(self, frame: int, size: float) -> tuple[float, float] | None:
        """From the object's centre; None if it is far away."""
        away = max(self.first - frame, frame - self.last, 0) / _APPROACH
        if away > 2:
            return None
        shift = 1.3 * size * away + (0.0 if self.complete else 0.45 * size)
        sign = 1 if frame <= self.last else -1
        return sign * shift * self.side[0], sign * shift * self.side[1]


def _frames(
    rng: np.random.Generator,
    background: Image.Image,
    target: Image.Image,
    path: _Path,
    below: list[tuple[Image.Image, _Path]],
    cover: _Cover,
) -> Iterator[tuple[npt.NDArray[np.uint8], Mask]]:
    camera = _path(rng)
    light, haze = rng.uniform(0, 1, 2)
    for frame in range(FRAMES):
        time = frame / FRAMES
        picture = _seen_by(background, camera, time)
        for other, others in below:
            layer = _placed(other, others.place(time), others.scale(time), others.turned(time))
            picture.paste(layer, (0, 0), layer)
        centre, size = path.place(time), path.scale(time)
        layer = _placed(target, centre, size, path.turned(time))
        picture.paste(layer, (0, 0), layer)
        mask = np.asarray(layer.getchannel("A")) > 127
        if (offset := cover.offset(frame, size)) is not None:
            at = centre[0] + offset[0], centre[1] + offset[1]
            layer = _placed(cover.picture, at, size * (1.6 if cover.complete else 0.8), 30 * time)
            picture.paste(layer, (0, 0), layer)
            mask &= np.asarray(layer.getchannel("A")) <= 127
        picture = ImageEnhance.Brightness(picture).enhance(1 + 0.2 * math.sin(2 * math.pi * (time + light)))
        picture = picture.filter(ImageFilter.GaussianBlur(0.6 + 0.6 * math.sin(2 * math.pi * (2 * time + haze))))
        pixels = np.asarray(picture, np.float32) + rng.normal(0, 3, (HEIGHT, WIDTH, 1))
        yield np.clip(pixels, 0, 255).astype(np.uint8), mask


# -- motion ---------------------------------------------------------------------------------------------------


def _path(rng: np.random.Generator) -> _Path:
    """Crosses much of the picture, with some six pixels from frame to frame."""
    return _Path(
        centre=(WIDTH / 2 + rng.uniform(-30, 30), HEIGHT / 2 + rng.uniform(-15, 15)),
        reach=(rng.uniform(150, 215), rng.uniform(60, 95)),
        turns=(rng.uniform(0.36, 0.5) * rng.choice([-1, 1]), rng.uniform(0.4, 0.7)),
        phases=(rng.uniform(0, 1), rng.uniform(0, 1)),
        size=rng.uniform(_LEAST_SIZE, _MOST_SIZE),
        swell=rng.uniform(0.1, 0.3),
        spin=rng.uniform(15, 50),
        angle=rng.uniform(-20, 20),
    )


def _mirrored(path: _Path) -> _Path:
    """As far on the other side of the middle."""
    reach = -path.reach[0], -path.reach[1]
    return _Path(path.centre, reach, path.turns, path.phases, path.size, -path.swell, -path.spin, -path.angle)


def _placed(cut: Image.Image, centre: tuple[float, float], size: float, degrees: float) -> Image.Image:
    """An RGBA layer of a frame's size, with the cut-out's longer side ``size`` pixels long."""
    scale = max(cut.size) / size
    cos, sin = math.cos(math.radians(degrees)) * scale, math.sin(math.radians(degrees)) * scale
    x, y = cut.width / 2 - cos * centre[0] - sin * centre[1], cut.height / 2 + sin * centre[0] - cos * centre[1]
    if scale > 1.5:  # a transformation takes no means of pixels
        half = cut.reduce(2)
        return _placed(half, centre, size, degrees)
    return cut.transform(
        (WIDTH, HEIGHT), Image.Transform.AFFINE, (cos, sin, x, -sin, cos, y), Image.Resampling.BILINEAR
    )


def _seen_by(background: Image.Image, camera: _Path, time: float) -> Image.Image:
    """A moving, turning part of a background of 1.6 times a frame's size."""
    degrees = 0.15 * camera.turned(time)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = (0.3 * (at - half) for at, half in zip(camera.place(time), (WIDTH / 2, HEIGHT / 2), strict=True))
    x, y = x + 0.8 * WIDTH, y + 0.8 * HEIGHT
    matrix = (cos, sin, x - cos * WIDTH / 2 - sin * HEIGHT / 2, -sin, cos, y + sin * WIDTH / 2 - cos * HEIGHT / 2)
    return background.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


# -- pictures -------------------------------------------------------------------------------------------------


@cache
def _outlines() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("outlines.json").read_text())
    return found


@cache
def _photograph(name: str) -> Image.Image:
    with Image.open(sample_photograph(name)) as picture:
        return picture.convert("RGB")


@cache
def cutout(name: str) -> tuple[Image.Image, str]:
    """RGBA, cropped, and the photograph that it is from."""
    entry = _outlines()[name]
    photograph = _photograph(entry["photograph"])
    alpha = Image.new("L", (4 * photograph.width, 4 * photograph.height))
    ImageDraw.Draw(alpha).polygon([(4 * x + 2, 4 * y + 2) for x, y in entry["outline"]], fill=255)
    whole = photograph.copy()
    whole.putalpha(alpha.reduce(4))
    cut = whole.crop(whole.getchannel("A").getbbox())
    return _padded(cut), str(entry["photograph"])


def _padded(cut: Image.Image) -> Image.Image:
    """With a transparent border, so that no edge is smeared."""
    padded = Image.new("RGBA", (cut.width + 4, cut.height + 4))
    padded.paste(cut, (2, 2))
    return padded


def _background(rng: np.random.Generator, without: str) -> Image.Image:
    names = [name for name in _BACKGROUNDS if name != without]
    picture = _photograph(names[int(rng.integers(len(names)))])
    wide, high = int(1.6 * WIDTH), int(1.6 * HEIGHT)
    scale = max(wide / picture.width, high / picture.height)
    resized = picture.resize((math.ceil(scale * picture.width), math.ceil(scale * picture.height)))
    return resized.crop((0, 0, wide, high))


def _recoloured(rng: np.random.Generator, cut: Image.Image) -> Image.Image:
    """A look-alike: mirrored, a little brighter or darker and paler."""
    alpha, colours = cut.getchannel("A"), cut.convert("RGB")
    colours = ImageEnhance.Brightness(colours).enhance(float(rng.choice([0.8, 1.2])))
    colours = ImageEnhance.Color(colours).enhance(float(rng.uniform(0.6, 0.9)))
    colours.putalpha(alpha)
    return colours.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _shape(rng: np.random.Generator, shape: str, filling: int, *, full: bool = False) -> tuple[Image.Image, str]:
    """A drawn shape, RGBA, filled with a texture (fillings 0 to 2) or with two colours; ``full`` ones have no gaps."""
    if filling % 6 < len(_TEXTURES):
        source = _TEXTURES[filling % 6]
        pattern = _photograph(source).crop((0, 0, _DRAWN, _DRAWN))
        tint = Image.new("RGB", pattern.size, _colour(rng))
        pattern = Image.blend(pattern, tint, 0.35)
    else:
        source, pattern = "", _stripes(rng)
    alpha = Image.new("L", (2 * _DRAWN, 2 * _DRAWN))
    ImageDraw.Draw(alpha).polygon(_outline(rng, shape, full), fill=255)
    pattern = pattern.copy()
    pattern.putalpha(alpha.reduce(2))
    return pattern, source


def _outline(rng: np.random.Generator, shape: str, full: bool) -> list[tuple[float, float]]:
    angles = np.linspace(0, 2 * math.pi, 240, endpoint=False)
    phase = rng.uniform(0, 2 * math.pi, 3)
    if full:
        radii = 0.93 + 0.05 * np.cos(6 * angles + phase[0])
    elif shape == "star":
        radii = 0.68 + 0.25 * np.cos(5 * angles + phase[0])
    elif shape == "polygon":
        sides = int(rng.integers(4, 7))
        radii = 0.93 * math.cos(math.pi / sides) / np.cos((angles + phase[0]) % (2 * math.pi / sides) - math.pi / sides)
    elif shape == "ellipse":
        radii = 0.93 / np.sqrt(1 + 1.5 * np.sin(angles + phase[0]) ** 2)
    else:
        radii = 0.7 + sum(0.07 * np.cos((2 + order) * angles + phase[order]) for order in range(3))
    return [
        (_DRAWN * (1 + r * math.cos(a)), _DRAWN * (1 + r * math.sin(a))) for r, a in zip(radii, angles, strict=True)
    ]


def _stripes(rng: np.random.Generator) -> Image.Image:
    first, second = np.array(_colour(rng)), np.array(_colour(rng))
    along = np.arange(_DRAWN)[:, None] * rng.uniform(-1, 1) + np.arange(_DRAWN)[None] * rng.uniform(-1, 1)
    share = (0.5 + 0.5 * np.sin(along / rng.uniform(4, 30)))[:, :, None]
    return Image.fromarray((first * share + second * (1 - share)).astype(np.uint8))


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in rng.integers(20, 236, 3))
    return red, green, blue
