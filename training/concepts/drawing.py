"""Draws batches of scenes on the GPU: shapes from a table of distances, textures, grounds, light, blur and noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.concepts.network import MASK_SIDE, SIDE
from training.concepts.words import COLOURS, SHAPES

#: Cells of the table of distances for the square -1..1, and how many samples make a pixel or a cell of a mask.
_TABLE = 192
_SAMPLES, _MASK_SAMPLES = 2, 3
#: Hue in degrees, saturation, value: from, to.
_HSV = {
    "red": ((-8, 8), (0.72, 1.0), (0.62, 0.95)),
    "orange": ((22, 34), (0.82, 1.0), (0.88, 1.0)),
    "yellow": ((48, 58), (0.7, 1.0), (0.86, 1.0)),
    "green": ((95, 145), (0.5, 1.0), (0.38, 0.8)),
    "cyan": ((176, 190), (0.6, 1.0), (0.75, 0.95)),
    "blue": ((214, 242), (0.65, 1.0), (0.5, 0.95)),
    "purple": ((266, 288), (0.5, 0.9), (0.42, 0.75)),
    "pink": ((325, 346), (0.3, 0.55), (0.9, 1.0)),
    "brown": ((17, 30), (0.55, 0.8), (0.28, 0.48)),
    "black": ((0, 360), (0.0, 0.3), (0.02, 0.14)),
    "white": ((0, 360), (0.0, 0.04), (0.94, 1.0)),
    "gray": ((0, 360), (0.0, 0.06), (0.4, 0.62)),
}
#: Colours from this number on have no hue, and no texture.
FIRST_GREY = COLOURS.index("black")
#: A thing differs from its ground by so much of RGB in 0..1.
_CONTRAST = 0.36


class Things(NamedTuple):
    """N things in each of B scenes; later ones lie on top.

    Attributes:
        shape, colour, size, texture: [B,N] numbers.
        x, y, radius: [B,N], pixels; half of the longest extent.
        angle, aspect: [B,N]; radians, and width by height beside that of the shape.
        there: [B,N], whether it is drawn.
    """

    shape: Tensor
    colour: Tensor
    size: Tensor
    texture: Tensor
    x: Tensor
    y: Tensor
    radius: Tensor
    angle: Tensor
    aspect: Tensor
    there: Tensor


def rgb_from_hsv(hsv: Tensor) -> Tensor:
    """[...,3] hue in degrees, saturation, value -> [...,3] in 0..1."""
    hue, saturation, value = hsv.unbind(-1)
    sector = (5 - 2 * torch.arange(3, device=hsv.device) + hue[..., None] / 60) % 6
    part = torch.minimum(sector, 4 - sector).clamp(0, 1)
    return value[..., None] * (1 - saturation[..., None] * part)


def distance_table() -> Tensor:
    """[12,192,192]: roughly the distance to each shape's border, below zero inside, for x and y (down) in -1..1."""
    axis = (torch.arange(_TABLE) + 0.5) / _TABLE * 2 - 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    far = torch.hypot(x, y)
    inner = torch.hypot(x - 0.5, y) - 0.85
    shapes = {
        "circle": far - 1,
        "square": torch.maximum(x.abs(), y.abs()) - 0.82,
        "triangle": _polygon(x, y, 3),
        "star": _star(x, y),
        "rectangle": torch.maximum(x.abs() - 1, y.abs() - 0.42),
        "ring": torch.maximum(far - 1, 0.58 - far),
        "cross": torch.minimum(
            torch.maximum(x.abs() - 0.98, y.abs() - 0.31), torch.maximum(x.abs() - 0.31, y.abs() - 0.98)
        ),
        "diamond": (x.abs() / 0.62 + y.abs() - 1) * 0.53,
        "pentagon": _polygon(x, y, 5),
        "hexagon": _polygon(x, y, 6),
        "heart": _heart(x, y),
        "crescent": torch.maximum(far - 1, -inner),
    }
    return torch.stack([shapes[name] for name in SHAPES])


def _polygon(x: Tensor, y: Tensor, corners: int) -> Tensor:
    """One corner points up."""
    sector = 2 * math.pi / corners
    angle = torch.atan2(x, -y)
    folded = (angle + sector / 2) % sector - sector / 2
    return torch.hypot(x, y) * (folded.abs() - sector / 2).cos() - math.cos(sector / 2)


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Five points, the inner corners at 0.42."""
    sector = 2 * math.pi / 5
    folded = ((torch.atan2(x, -y) + sector / 2) % sector - sector / 2).abs()
    far = torch.hypot(x, y)
    along, across = far * folded.cos(), far * folded.sin()
    corner_x, corner_y = 0.42 * math.cos(sector / 2), 0.42 * math.sin(sector / 2)
    length = math.hypot(1 - corner_x, corner_y)
    return (along * corner_y + across * (1 - corner_x) - corner_y) / length


def _heart(x: Tensor, y: Tensor) -> Tensor:
    """An implicit curve; the distance is that to the nearest of many places on it."""
    u, v = x * 1.15, -y * 1.15 + 0.12
    inside = (u * u + v * v - 0.62).pow(3) < 0.9 * u * u * v.pow(3)
    edge = (inside[1:, 1:] != inside[:-1, 1:]) | (inside[1:, 1:] != inside[1:, :-1])
    border = torch.stack([x[1:, 1:][edge], y[1:, 1:][edge]], 1)
    far = torch.cdist(torch.stack([x, y], -1).flatten(0, 1), border).amin(1).reshape(x.shape)
    return torch.where(inside, -far, far)


class Painter:
    """Turns things into pictures and masks."""

    def __init__(self, random: torch.Generator, fast: bool = False) -> None:
        self.random = random
        self.device = random.device
        self._table = distance_table().to(self.device)
        self._stamp, self._shade = _stamp, _shade
        if fast:  # a tenth of the time, for half a minute of compilation
            self._stamp, self._shade = (torch.compile(one, dynamic=False) for one in (_stamp, _shade))
        self._hsv = torch.tensor([_HSV[name] for name in COLOURS], device=self.device)  # [12,3,2]
        self.typical = rgb_from_hsv(self._hsv.mean(-1))
        self._block = _cosines().to(self.device)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, generator=self.random, device=self.device) * (high - low) + low

    def grounds(self, scenes: int) -> tuple[Tensor, Tensor]:
        """Pictures [B,3,336,336] without things, and [B,12] which colours can be seen on them."""
        hue = self.uniform(scenes, 1, high=360) + self.uniform(scenes, 2, low=-40, high=40)
        vivid = (self.uniform(scenes, 1) < 0.2) * 0.4
        saturation = self.uniform(scenes, 2, high=0.3) + vivid
        level = self.uniform(scenes, 1) + self.uniform(scenes, 2, low=-0.12, high=0.12)
        ends = rgb_from_hsv(torch.stack([hue, saturation, level.clamp(0.03, 1)], -1))  # [B,2,3]
        kind = self.uniform(scenes, 1, 1)
        angle = self.uniform(scenes, 1, 1, high=2 * math.pi)
        axis = torch.linspace(-0.5, 0.5, SIDE, device=self.device)
        along = axis[None, None, :] * angle.cos() + axis[None, :, None] * angle.sin()
        waves = (along * self.uniform(scenes, 1, 1, low=12, high=90)).sin() * 0.5 + 0.5
        clouds = self._clouds(scenes)
        share = torch.where(kind < 0.25, torch.zeros_like(along), along + 0.5)
        share = torch.where((kind > 0.45) & (kind < 0.6), waves, share)
        share = torch.where(kind > 0.6, clouds, share).clamp(0, 1)[:, None]
        first, second = ends[:, 0, :, None, None], ends[:, 1, :, None, None]
        picture = first + (second - first) * share
        fine = functional.interpolate(self.uniform(scenes, 3, 84, 84, low=-1), size=SIDE, mode="bilinear")
        picture = picture + fine * (self.uniform(scenes, 1, 1, 1) - 0.4).clamp(min=0) * 0.12
        distance = (ends[:, :, None] - self.typical).norm(dim=-1).amin(1)  # [B,12]
        return picture, distance > _CONTRAST

    def _clouds(self, scenes: int) -> Tensor:
        """[B,336,336] smooth noise of several sizes, as in a photograph out of focus."""
        total = torch.zeros(scenes, SIDE, SIDE, device=self.device)
        for side, weight in ((3, 0.5), (6, 0.3), (14, 0.2), (40, 0.1)):
            noise = self.uniform(scenes, 1, side, side)
            total += weight * functional.interpolate(noise, size=SIDE, mode="bicubic", align_corners=True)[:, 0]
        return ((total - 0.55) * 1.6 + 0.5).clamp(0, 1)

    def owners(self, things: Things, side: int) -> Tensor:
        """[B,side,side]: which thing, from 1, is on top at each place; 0 is none."""
        places = (torch.arange(side, device=self.device) + 0.5) * (SIDE / side)
        top = torch.zeros(len(things.x), side, side, dtype=torch.int32, device=self.device)
        numbers = torch.arange(1, things.x.shape[1] + 1, dtype=torch.int32, device=self.device)
        for number in range(things.x.shape[1]):
            top = self._stamp(
                top, Things(*(field[:, number] for field in things)), numbers[number], places, self._table
            )
        return top

    def paint(self, things: Things, ground: Tensor) -> Tensor:
        """[B,3,336,336] in 0..1."""
        count = things.x.shape[1]
        top = self.owners(things, SIDE * _SAMPLES)
        base, second, outline = self._colours(things)
        turn = self.uniform(len(things.x), count, high=math.pi)
        period = things.radius * self.uniform(len(things.x), count, low=0.4, high=0.56)
        look = torch.stack([turn.cos(), turn.sin(), period, outline], -1)
        drawn, cover = self._shade(top, things, torch.cat([base, second, look], -1), self._table)
        return self._photographed(ground * (1 - cover) + drawn)

    def _colours(self, things: Things) -> tuple[Tensor, Tensor, Tensor]:
        """[B,N,3] of the thing and of its texture, and [B,N] pixels of a darker outline."""
        scenes, count = things.x.shape
        low, high = self._hsv[things.colour].unbind(-1)
        base = rgb_from_hsv(low + (high - low) * self.uniform(scenes, count, 3))
        light = base[..., 0] * 0.3 + base[..., 1] * 0.59 + base[..., 2] * 0.11
        lighter = (light + self.uniform(scenes, count, low=-0.2, high=0.2) < 0.55)[..., None]
        second = torch.where(lighter, base * 0.12 + 0.86, base * 0.22)
        width = self.uniform(scenes, 1, low=1.2, high=2.5) * (self.uniform(scenes, 1) < 0.3)
        return base, second, width.expand(-1, count)

    def masks(self, things: Things) -> tuple[Tensor, Tensor]:
        """[B,N,96,96] visible ninths of each cell (uint8), and [B,N,4] boxes xyxy in 0..1 of what is visible."""
        side = MASK_SIDE * _MASK_SAMPLES
        top = self.owners(things, side)
        count = things.x.shape[1]
        places = torch.arange(side, device=self.device).float()
        masks, boxes = [], []
        for number in range(1, count + 1):
            mine = top == number
            cells = mine.reshape(-1, MASK_SIDE, _MASK_SAMPLES, MASK_SIDE, _MASK_SAMPLES)
            masks.append(cells.sum((2, 4), dtype=torch.uint8))
            ends = []
            for seen in (mine.any(1), mine.any(2)):  # columns, rows
                ends += [torch.where(seen, places, side).amin(1), torch.where(seen, places + 1, 0.0).amax(1)]
            boxes.append(torch.stack([ends[0], ends[2], ends[1], ends[3]], -1) / side)
        return torch.stack(masks, 1), torch.stack(boxes, 1)

    def _photographed(self, picture: Tensor) -> Tensor:
        scenes = len(picture)
        axis = torch.linspace(-1, 1, SIDE, device=self.device)
        tilt = self.uniform(scenes, 2, 1, 1, low=-0.08, high=0.08)
        light = self.uniform(scenes, 1, 1, low=0.88, high=1.08) + tilt[:, 0] * axis + tilt[:, 1] * axis[:, None]
        picture = picture * light[:, None] * self.uniform(scenes, 3, 1, 1, low=0.95, high=1.05)
        smooth = functional.avg_pool2d(functional.avg_pool2d(picture, 3, 1, 1), 3, 1, 1)
        blur = self.uniform(scenes, 1, 1, 1, low=-0.6, high=1.0).clamp(min=0)
        picture = torch.lerp(picture, smooth, blur)
        noise = torch.randn(picture.shape, generator=self.random, device=self.device)
        picture = picture + noise * self.uniform(scenes, 1, 1, 1, low=-0.02, high=0.05).clamp(min=0)
        coarse = self.uniform(scenes, 1, 1, 1, 1, 1, low=-0.3, high=0.25).clamp(min=1e-3)
        return self._blocks(picture.clamp(0, 1), coarse).clamp(0, 1)

    def _blocks(self, picture: Tensor, coarse: Tensor) -> Tensor:
        """Rounds the cosines of 8 x 8 blocks, as JPEG does."""
        blocks = picture.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)  # [B,3,42,42,8,8]
        cosines = self._block @ blocks @ self._block.T
        step = coarse * (1 + torch.arange(8, device=self.device) + torch.arange(8, device=self.device)[:, None])
        cosines = (cosines / step).round() * step
        return (self._block.T @ cosines @ self._block).transpose(3, 4).flatten(4, 5).flatten(2, 3)


def _stamp(top: Tensor, one: Things, number: Tensor, places: Tensor, table: Tensor) -> Tensor:
    """Lays one thing of each scene on top of the others."""
    local_x, local_y = _local(one, places)
    inside = _distance(table, one.shape[:, None, None], local_x, local_y) < 0
    return torch.where(inside & one.there[:, None, None], number, top)


def _distance(table: Tensor, shape: Tensor, x: Tensor, y: Tensor) -> Tensor:
    column, row = (((one + 1) * (_TABLE / 2)).long() for one in (x, y))
    outside = (x.abs() >= 1) | (y.abs() >= 1)
    index = (shape * _TABLE + row.clamp(0, _TABLE - 1)) * _TABLE + column.clamp(0, _TABLE - 1)
    return torch.where(outside, 1.0, table.flatten()[index])


def _shade(top: Tensor, things: Things, look: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Colours [B,3,336,336] times cover [B,1,336,336].

    Args:
        top: numbers of things from 1, 0 is none, at [B,672,672] places.
        look: [B,N,10] colour, colour of the texture, cosine and sine of its angle, its period, and the outline.
    """
    scenes, side, _ = top.shape
    chosen = (top - 1).clamp(min=0).long().flatten(1)

    def of(field: Tensor) -> Tensor:
        return field.gather(1, chosen).reshape(scenes, side, side)

    places = (torch.arange(side, device=top.device) + 0.5) / _SAMPLES
    dx, dy = places[None, None, :] - of(things.x), places[None, :, None] - of(things.y)
    cos, sin, period, outline = (of(look[..., 6 + number]) for number in range(4))
    part = _patterned(of(things.texture), (dx * cos + dy * sin) / period, (dy * cos - dx * sin) / period)
    radius, wide = of(things.radius), of(things.aspect).sqrt()
    cos, sin = of(things.angle).cos(), of(things.angle).sin()
    local_x, local_y = (dx * cos + dy * sin) / (radius * wide), (dy * cos - dx * sin) * wide / radius
    rim = _distance(table, of(things.shape), local_x, local_y) * radius > -outline
    channels = []
    for channel in range(3):
        base = of(look[..., channel])
        channels.append(torch.where(rim, base * 0.4, torch.where(part, of(look[..., 3 + channel]), base)))
    drawn = torch.stack(channels, 1) * (top > 0)[:, None]
    return functional.avg_pool2d(drawn, _SAMPLES), functional.avg_pool2d((top > 0)[:, None].float(), _SAMPLES)


def _local(one: Things, places: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates [B,s,s] in the shape's own square, -1..1, for pixels at ``places`` [s]."""
    column = (field[:, None, None] for field in (one.x, one.y, one.radius, one.angle, one.aspect))
    x, y, radius, angle, aspect = column
    dx, dy = places[None, None, :] - x, places[None, :, None] - y
    wide = aspect.sqrt()
    cos, sin = angle.cos(), angle.sin()
    return dx * (cos / (radius * wide)) + dy * (sin / (radius * wide)), (dy * cos - dx * sin) * (wide / radius)


def _patterned(texture: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Where a texture has its second colour; u and v are in periods."""
    stripes = u % 1 < 0.45
    dots = torch.hypot(u % 1 - 0.5, v % 1 - 0.5) < 0.31
    checks = (((u * 1.6).floor() + (v * 1.6).floor()) % 2) == 0
    return ((texture == 1) & stripes) | ((texture == 2) & dots) | ((texture == 3) & checks)


def _cosines() -> Tensor:
    """[8,8], the orthonormal cosine transform."""
    place = torch.arange(8) + 0.5
    rows = torch.cos(torch.arange(8)[:, None] * place * math.pi / 8) * 0.5
    rows[0] /= math.sqrt(2)
    return rows
