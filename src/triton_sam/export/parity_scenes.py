"""Test images of the parity check, with objects in them, and prompts that point at these objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

FloatArray = npt.NDArray[np.float32]
Box = tuple[float, float, float, float]
Point = tuple[float, float]

DRAWING = "drawn"
PHOTOGRAPH = "photograph"
_SHAPES = 5
#: How far a seed moves the prompts of a drawing, as a share of its side.
_JITTER = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """An image and the positions of its objects.

    Attributes:
        name: its name in a report.
        pixels: [1,3,side,side] in [0,1].
        points: a point on each of three objects, (x, y) as shares of the sides.
        box: around one object, (left, top, right, bottom) as shares of the sides.
        outside: a background point in that box.
        jitter: how far a seed may move prompts, as a share of the sides. Prompts on the photograph are not moved: every
            precision is judged there, and networks are less sure beside these objects.
    """

    name: str
    pixels: FloatArray
    points: tuple[Point, Point, Point]
    box: Box
    outside: Point
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Prompts of one kind on one image, model pixels: [B,P,2], [B,P], [B,4] or None, [1,1,h,w] or None."""

    kind: str
    points: Tensor
    labels: Tensor
    boxes: Tensor | None = None
    mask: Tensor | None = None


def scenes(side: int, seed: int) -> list[Scene]:
    """The drawing of a seed and, if scikit-image is installed, its photograph of a cup of coffee."""
    found = [drawing(side, seed)]
    shown = photograph(side)
    return found if shown is None else [*found, shown]


def photograph(side: int) -> Scene | None:
    """scikit-image's coffee: a spoon, the rim of the cup, the coffee in it; a box around the cup."""
    try:
        from skimage import data
    except ImportError:
        return None
    picture = Image.fromarray(data.coffee()).resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.ascontiguousarray(np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 255)
    spoon, rim, coffee = (0.6, 0.72), (0.45, 0.1), (0.47, 0.35)
    return Scene(PHOTOGRAPH, pixels, (spoon, rim, coffee), (0.24, 0.04, 0.70, 0.56), outside=coffee)


def drawing(side: int, seed: int) -> Scene:
    """Ellipses and rectangles, each with a colour and a texture of its own, on a textured gradient."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side].astype(np.float32) / side
    image = _surface(random, rows, columns)
    points: list[Point] = []
    boxes: list[Box] = []
    for cell in random.permutation(9)[:_SHAPES]:  # each in a cell of its own, so that none covers another's centre
        middle = (np.array([cell % 3, cell // 3]) + 0.5 + random.uniform(-0.1, 0.1, 2)) / 3
        half = random.uniform(0.08, 0.16, 2)
        inside = _shape(columns - middle[0], rows - middle[1], half, random.uniform(0, np.pi), random.random() < 0.5)
        cover = (inside * side).clip(0, 1).astype(np.float32)  # an edge of one pixel
        image = image * (1 - cover) + _surface(random, rows, columns) * cover
        points.append((float(middle[0]), float(middle[1])))
        covered = np.argwhere(cover > 0.5) / side
        (top, left), (bottom, right) = covered.min(axis=0), covered.max(axis=0)
        boxes.append((float(left), float(top), float(right), float(bottom)))
    left, top, right, bottom = boxes[0]
    pixels = np.ascontiguousarray(image[None].clip(0, 1), np.float32)
    corner = (left + 0.1 * (right - left), top + 0.1 * (bottom - top))
    return Scene(DRAWING, pixels, (points[0], points[1], points[2]), boxes[0], corner, _JITTER)


def _surface(random: np.random.Generator, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """[3,side,side]: from one colour to another, with waves of three lengths."""
    first, second = random.uniform(0.1, 0.9, (2, 3, 1, 1))
    angle = random.uniform(0, 2 * np.pi)
    along = ((columns - 0.5) * np.cos(angle) + (rows - 0.5) * np.sin(angle)) * 0.7 + 0.5
    surface = first + (second - first) * along
    for waves in (3, 12, 48):
        angle, phase = random.uniform(0, 2 * np.pi, 2)
        wave = np.sin(2 * np.pi * waves * (columns * np.cos(angle) + rows * np.sin(angle)) + phase)
        surface = surface + random.uniform(0, 0.06, (3, 1, 1)) * wave
    return np.asarray(surface, np.float32)


def _shape(
    x: FloatArray, y: FloatArray, half: npt.NDArray[np.float64], angle: float, is_ellipse: bool
) -> npt.NDArray[np.float64]:
    """Distance of each pixel inside the shape from its edge; negative outside."""
    across = np.abs(x * np.cos(angle) + y * np.sin(angle)) / half[0]
    down = np.abs(y * np.cos(angle) - x * np.sin(angle)) / half[1]
    reach = np.hypot(across, down) if is_ellipse else np.maximum(across, down)
    return np.asarray((1 - reach) * float(half.min()), np.float64)


def prompts(scene: Scene, side: int, seed: int) -> Iterator[Case]:
    """One case of each kind of prompt that needs no mask; the seed moves them by the scene's jitter."""
    random = np.random.default_rng([seed, 1])

    def at(*points: Point) -> Tensor:
        moved = np.array(points) + random.uniform(-scene.jitter, scene.jitter, (len(points), 2))
        return torch.from_numpy((moved * side).astype(np.float32))[None]

    first, second, third = scene.points
    object_, background = torch.ones(1, 1), torch.zeros(1, 1)
    nothing = torch.zeros(1, 0, 2), torch.zeros(1, 0)
    box = at(scene.box[:2], scene.box[2:]).reshape(1, 4)
    yield Case("point", at(first), object_)
    yield Case("two points", at(second, first), torch.tensor([[1.0, 0.0]]))
    yield Case("box", *nothing, boxes=box)
    yield Case("box and point", at(scene.outside), background, boxes=box)
    three = torch.cat([at(first), at(second), at(third)])
    yield Case("three objects", three, torch.ones(3, 1))
    # Two objects but not a third: an ambiguous prompt, for which trained networks' masks are unstable, so that an
    # alternative is chosen.
    turned = torch.stack([three[:, 0].roll(turn, dims=0) for turn in range(3)])
    yield Case("unlike objects", turned, torch.tensor([[1.0, 0.0, 1.0]]).expand(3, -1))
