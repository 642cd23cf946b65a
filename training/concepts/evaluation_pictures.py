"""Pictures of the second generator: drawn with Pillow, with outlines, palettes and grounds of its own."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from training.concepts.words import COLOURS, SHAPES, TEXTURES

#: Pixels are drawn so many times as fine.
_FINE = 3
#: Longest extent as a share of the picture's side.
_EXTENTS = ((0.095, 0.122), (0.21, 0.31))
_PALETTE: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((220, 20, 45), (205, 30, 30), (237, 41, 57), (178, 24, 30)),
    "orange": ((255, 140, 0), (250, 128, 16), (245, 150, 30)),
    "yellow": ((255, 222, 20), (245, 215, 60), (252, 232, 70)),
    "green": ((40, 150, 60), (34, 120, 34), (60, 180, 75), (20, 160, 90)),
    "cyan": ((30, 205, 215), (64, 200, 208), (0, 190, 205)),
    "blue": ((40, 70, 210), (30, 100, 225), (20, 40, 150), (65, 105, 225)),
    "purple": ((128, 40, 150), (110, 60, 170), (148, 60, 190)),
    "pink": ((255, 150, 190), (250, 130, 175), (248, 165, 195)),
    "brown": ((120, 70, 30), (101, 62, 32), (110, 58, 28)),
    "black": ((12, 12, 14), (24, 22, 22), (30, 30, 34)),
    "white": ((252, 252, 252), (245, 245, 242)),
    "gray": ((128, 128, 128), (112, 114, 118), (145, 145, 143)),
}
_GREYS = ("black", "white", "gray")


#: A picture, the number of the topmost thing (from 1) at each pixel, and attributes and whole areas of the things.
Drawn = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], list[tuple[tuple[int, ...], float]]]


def draw(rng: np.random.Generator, side: int) -> Drawn:
    """A square picture of this side, in pixels."""
    ground = _ground(rng, side)
    names = _visible_colours(ground)
    shapes = rng.choice(len(SHAPES), int(rng.integers(2, 6)), replace=False)
    colours = rng.choice(names, min(len(names), int(rng.integers(2, 5))), replace=False)
    textured = rng.random() < 0.6
    outlined = rng.random() < 0.25
    canvas = ground.resize((side * _FINE, side * _FINE), Image.Resampling.BICUBIC)
    owners = Image.new("L", canvas.size)
    drawn: list[tuple[tuple[int, ...], float]] = []
    for x, y, size in _places(rng, side):
        shape, colour = int(rng.choice(shapes)), str(rng.choice(colours))
        texture = int(rng.integers(1, 4)) if textured and colour not in _GREYS and rng.random() < 0.6 else 0
        radius = rng.uniform(*_EXTENTS[size]) * side / 2
        stencil, corner = _stencil(SHAPES[shape], x * _FINE, y * _FINE, radius * _FINE, rng)
        fill = _fill(stencil.size, colour, texture, radius * _FINE, rng)
        if outlined:
            inner = stencil.filter(ImageFilter.MinFilter(2 * _FINE - 1))
            fill = Image.composite(fill, Image.eval(fill, lambda value: value // 3), inner)
        canvas.paste(fill, corner, stencil)
        drawn.append(((shape, COLOURS.index(colour), size, texture), np.count_nonzero(stencil) / _FINE**2))
        owners.paste(len(drawn), corner, stencil)
    small = canvas.resize((side, side), Image.Resampling.BOX)
    middle = _FINE // 2
    return _finished(small, rng), np.asarray(owners)[middle::_FINE, middle::_FINE], drawn


def _places(rng: np.random.Generator, side: int) -> list[tuple[float, float, int]]:
    """Centres in pixels, and sizes: in cells of a grid, or scattered; large things do not come in crowds."""
    if rng.random() < 0.4:
        across = int(rng.integers(2, 6))
        cell = side / across
        cells = rng.permutation(across * across)[: int(rng.integers(2, across * across + 1))]
        room = (cell - _EXTENTS[0][1] * side) / 2
        large = across == 2 or (across == 3 and rng.random() < 0.5)
        return [
            (
                (number % across + 0.5) * cell + rng.uniform(-room, room) * 0.7,
                (number // across + 0.5) * cell + rng.uniform(-room, room) * 0.7,
                int(large and rng.random() < 0.6),
            )
            for number in cells
        ]
    wanted, share = int(rng.integers(2, 21)), rng.uniform(0.1, 0.6)
    near = rng.uniform(0.8, 1.1)
    places: list[tuple[float, float, int]] = []
    for _ in range(200):
        size = int(rng.random() < share and sum(place[2] for place in places) < 6)
        reach = _EXTENTS[size][1] * side / 2
        x, y = rng.uniform(reach * 0.9, side - reach * 0.9, 2)
        far = all(
            math.hypot(x - other[0], y - other[1]) > near * (reach + _EXTENTS[other[2]][1] * side / 2)
            for other in places
        )
        if far:
            places.append((float(x), float(y), size))
        if len(places) == wanted:
            break
    return places


def _outline(shape: str, rng: np.random.Generator) -> list[list[tuple[float, float]]]:
    """Polygons in the unit circle, y down; the second one is cut out of the first."""
    around = [2 * math.pi * step / 72 for step in range(72)]
    if shape in ("circle", "ring"):
        rings = [1.0] if shape == "circle" else [1.0, rng.uniform(0.52, 0.64)]
        return [[(far * math.cos(angle), far * math.sin(angle)) for angle in around] for far in rings]
    if shape == "crescent":
        whole = [(math.cos(angle), math.sin(angle)) for angle in around]
        shift, far = rng.uniform(0.42, 0.55), rng.uniform(0.8, 0.9)
        return [whole, [(shift + far * math.cos(angle), far * math.sin(angle)) for angle in around]]
    if shape == "heart":
        curve = [
            (
                16 * math.sin(angle) ** 3,
                -(13 * math.cos(angle) - 5 * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)),
            )
            for angle in around
        ]
        return [[(x / 17, (y - 2.5) / 17) for x, y in curve]]
    if shape == "cross":
        arm = rng.uniform(0.26, 0.35)
        corner = [(arm, 1.0), (arm, arm), (1.0, arm)]
        quarters = [[(1, 1), (1, -1), (-1, -1), (-1, 1)][turn] for turn in range(4)]
        points = []
        for turn, (sign_x, sign_y) in enumerate(quarters):
            part = [(x * sign_x, y * sign_y) for x, y in corner]
            points += part[::-1] if turn % 2 else part
        return [points]
    if shape == "rectangle":
        half = rng.uniform(0.36, 0.5)
        return [[(-1, -half), (1, -half), (1, half), (-1, half)]]
    if shape == "square":
        return [[(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]]
    if shape == "diamond":
        half = rng.uniform(0.55, 0.66)
        return [[(0, -1), (half, 0), (0, 1), (-half, 0)]]
    if shape == "star":
        inner = rng.uniform(0.38, 0.46)
        return [[_at(step / 10, inner if step % 2 else 1.0) for step in range(10)]]
    corners = {"triangle": 3, "pentagon": 5, "hexagon": 6}[shape]
    return [[_at(step / corners, 1.0) for step in range(corners)]]


def _at(turn: float, far: float) -> tuple[float, float]:
    return far * math.sin(2 * math.pi * turn), -far * math.cos(2 * math.pi * turn)


def _stencil(
    shape: str, x: float, y: float, radius: float, rng: np.random.Generator
) -> tuple[Image.Image, tuple[int, int]]:
    """The shape as a mask, and where its corner belongs."""
    most = {"square": 15, "diamond": 18, "heart": 30, "pentagon": 180}.get(shape, 180)
    angle = math.radians(rng.uniform(-most, most))
    cos, sin = math.cos(angle), math.sin(angle)
    half = math.ceil(radius * 1.1) + 2
    left, top = round(x) - half, round(y) - half
    stencil = Image.new("L", (2 * half + 1, 2 * half + 1))
    pen = ImageDraw.Draw(stencil)
    for number, polygon in enumerate(_outline(shape, rng)):
        turned = [
            (x - left + radius * (px * cos - py * sin), y - top + radius * (px * sin + py * cos)) for px, py in polygon
        ]
        pen.polygon(turned, fill=0 if number else 255)
    return stencil, (left, top)


def _fill(size: tuple[int, int], colour: str, texture: int, radius: float, rng: np.random.Generator) -> Image.Image:
    """A rectangle of a colour and its texture."""
    shades = _PALETTE[colour]
    base = np.array(shades[int(rng.integers(len(shades)))]) + rng.uniform(-8, 8, 3)
    dark = base @ (0.3, 0.6, 0.1) > rng.uniform(110, 170)
    second = np.full(3, rng.uniform(5, 40)) if dark else np.full(3, rng.uniform(235, 255))
    angle = rng.uniform(0, math.pi)
    y, x = np.mgrid[: size[1], : size[0]]
    u = (x * math.cos(angle) + y * math.sin(angle)) / radius
    v = (y * math.cos(angle) - x * math.sin(angle)) / radius
    period = rng.uniform(0.42, 0.55)
    if TEXTURES[texture] == "striped":
        other = np.sin(u * 2 * math.pi / period) > rng.uniform(0.0, 0.25)
    elif TEXTURES[texture] == "dotted":
        row = np.floor(v / period)
        away_u = (u / period + 0.5 * (row % 2)) % 1 - 0.5
        other = np.hypot(away_u, v / period - row - 0.5) < rng.uniform(0.27, 0.32)
    elif TEXTURES[texture] == "checkered":
        step = period * rng.uniform(0.6, 0.7)
        other = (np.floor(u / step) + np.floor(v / step)) % 2 > 0
    else:
        other = np.zeros(u.shape, dtype=bool)
    pixels = np.where(other[..., None], second, base)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _ground(rng: np.random.Generator, side: int) -> Image.Image:
    """Paper, slopes, graph paper, lights out of focus, or grain."""
    tone = rng.uniform(0, 255) + rng.uniform(-18, 18, 3)
    if rng.random() < 0.3:  # a tint
        tone = tone * 0.7 + rng.uniform(0, 255, 3) * 0.3
    y, x = np.mgrid[:side, :side] / side - 0.5
    pixels = np.broadcast_to(tone, (side, side, 3)).copy()
    kind = int(rng.integers(6))
    if kind == 1:
        pixels += (np.hypot(x, y) * rng.uniform(-60, 60))[..., None]
    elif kind == 2:
        pixels += ((x * rng.normal() + y * rng.normal()) * 40)[..., None]
    elif kind == 3:
        step = int(rng.integers(14, 40))
        lines = (np.arange(side) % step) < 2
        pixels[lines[:, None] | lines[None, :]] += rng.choice((-22, 22))
    elif kind == 4:
        for _ in range(12):
            at_x, at_y, far = rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5), rng.uniform(0.05, 0.3)
            glow = np.exp(-(((x - at_x) ** 2 + (y - at_y) ** 2) / far**2))
            pixels += glow[..., None] * rng.uniform(-22, 22, 3)
    elif kind == 5:
        small = rng.normal(0, 16, (side // 4, side // 16, 1))
        grain = np.repeat(np.repeat(small, 4, 0), 16, 1)
        pixels[: grain.shape[0], : grain.shape[1]] += grain
    ground = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return ground.filter(ImageFilter.GaussianBlur(1)) if kind == 5 else ground


def _visible_colours(ground: Image.Image) -> list[str]:
    """Names of the colours that can be told from the ground."""
    tone = np.asarray(ground).reshape(-1, 3).mean(0)
    return [
        name
        for name, shades in _PALETTE.items()
        if min(float(np.linalg.norm(np.array(shade) - tone)) for shade in shades) > 100
    ]


def _finished(picture: Image.Image, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Some pictures are blurred, noisy, darker or compressed."""
    if rng.random() < 0.35:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    pixels = np.asarray(picture).astype(np.float64) * rng.uniform(0.9, 1.06)
    if rng.random() < 0.35:
        pixels += rng.normal(0, rng.uniform(2, 9), pixels.shape)
    made = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if rng.random() < 0.5:
        file = io.BytesIO()
        made.save(file, "JPEG", quality=int(rng.integers(55, 95)))
        made = Image.open(file)
    return np.asarray(made.convert("RGB"))
