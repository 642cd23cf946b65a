"""Synthetic scenes of coloured shapes, and questions about them with their answers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFilter

SIDE = 128
_OVERSAMPLING = 3
SHAPES = ("circle", "square", "triangle", "star")
COLOURS = {
    "red": (214, 40, 40),
    "green": (44, 160, 60),
    "blue": (40, 90, 210),
    "yellow": (245, 205, 50),
    "orange": (245, 130, 30),
    "purple": (140, 60, 170),
    "black": (30, 30, 34),
}
#: Of a 3 x 3 grid, row by row, as an answer says it.
PLACES = (
    "at the top left",
    "at the top",
    "at the top right",
    "at the left",
    "in the centre",
    "at the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
)
NUMBERS = ("no", "one", "two", "three", "four", "five")
MOST_THINGS = len(NUMBERS) - 1


@dataclass(frozen=True)
class Thing:
    """One shape in one cell of the grid."""

    shape: str
    colour: str
    cell: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def place(self) -> str:
        return PLACES[self.cell]


@dataclass(frozen=True)
class Scene:
    """Things in the order of reading; ``seed`` decides how they are drawn."""

    things: tuple[Thing, ...]
    seed: int


@dataclass(frozen=True)
class Question:
    """``kind`` is colour, count, place, what, exists or describe."""

    kind: str
    text: str
    answer: str


def make_scene(rng: random.Random) -> Scene:
    """One to five things in cells of their own."""
    cells = sorted(rng.sample(range(len(PLACES)), rng.randint(1, MOST_THINGS)))
    things = tuple(Thing(rng.choice(SHAPES), rng.choice(tuple(COLOURS)), cell) for cell in cells)
    return Scene(things, rng.getrandbits(32))


# -- pictures --------------------------------------------------------------------------------------------------


def draw(scene: Scene, side: int = SIDE) -> Image.Image:
    """The scene as an RGB picture, ``side`` x ``side``; sizes, angles, tints and the ground vary with its seed."""
    rng = random.Random(scene.seed)
    full = side * _OVERSAMPLING
    level = rng.randint(205, 255)
    ground = tuple(max(0, min(255, level + rng.randint(-12, 12))) for _ in range(3))
    picture = Image.new("RGB", (full, full), ground)
    pen = ImageDraw.Draw(picture)
    for thing in scene.things:
        _draw_thing(pen, thing, full / 3, rng)
    picture = picture.resize((side, side), Image.Resampling.LANCZOS)
    return picture.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.6)))


def _draw_thing(pen: ImageDraw.ImageDraw, thing: Thing, cell: float, rng: random.Random) -> None:
    radius = cell * rng.uniform(0.27, 0.42)
    room = cell / 2 - radius
    x = (thing.cell % 3 + 0.5) * cell + rng.uniform(-room, room) * 0.8
    y = (thing.cell // 3 + 0.5) * cell + rng.uniform(-room, room) * 0.8
    tint = tuple(max(0, min(255, value + rng.randint(-14, 14))) for value in COLOURS[thing.colour])
    if thing.shape == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tint)
    else:
        pen.polygon(_corners(thing.shape, x, y, radius, rng.uniform(-0.25, 0.25)), fill=tint)


def _corners(shape: str, x: float, y: float, radius: float, turn: float) -> list[tuple[float, float]]:
    count, inner = {"square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.42)}[shape]
    start = math.pi / 4 if shape == "square" else -math.pi / 2
    corners = []
    for index in range(count):
        far = radius * (inner if index % 2 and shape == "star" else 1.0)
        angle = start + turn + 2 * math.pi * index / count
        corners.append((x + far * math.cos(angle), y + far * math.sin(angle)))
    return corners


# -- questions -------------------------------------------------------------------------------------------------


def ask(scene: Scene, rng: random.Random) -> Question:
    """A question of a random kind that this scene has an answer to."""
    makers = list(_MAKERS.items())
    rng.shuffle(makers)
    for kind, make in makers:
        made = make(scene, rng)
        if made is not None:
            return Question(kind, *made)
    raise AssertionError("a scene can always be described")


def _unique(scene: Scene, key: Callable[[Thing], str]) -> list[Thing]:
    keys = [key(thing) for thing in scene.things]
    return [thing for thing in scene.things if keys.count(key(thing)) == 1]


def _colour(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    things = _unique(scene, lambda thing: thing.shape)
    if not things:
        return None
    thing = rng.choice(things)
    word = rng.choice(("colour", "color"))
    return f"What {word} is the {thing.shape}?", f"The {thing.shape} is {thing.colour}."


def _count(scene: Scene, rng: random.Random) -> tuple[str, str]:
    what = rng.choice(("shape", "kind", "colour"))
    if what == "shape":
        return "How many shapes are there?", _there_are(len(scene.things), "shape")
    if what == "kind":
        shape = rng.choice(SHAPES)
        found = sum(thing.shape == shape for thing in scene.things)
        return f"How many {shape}s are there?", _there_are(found, shape)
    colour = rng.choice(tuple(COLOURS))
    found = sum(thing.colour == colour for thing in scene.things)
    return f"How many {colour} shapes are there?", _there_are(found, f"{colour} shape")


def _there_are(count: int, noun: str) -> str:
    return f"There is one {noun}." if count == 1 else f"There are {NUMBERS[count]} {noun}s."


def _place(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    things = _unique(scene, lambda thing: thing.name)
    if not things:
        return None
    thing = rng.choice(things)
    return f"Where is the {thing.name}?", f"The {thing.name} is {thing.place}."


def _what(scene: Scene, rng: random.Random) -> tuple[str, str]:
    cell = rng.choice([thing.cell for thing in scene.things]) if rng.random() < 0.7 else rng.randrange(len(PLACES))
    found = next((thing for thing in scene.things if thing.cell == cell), None)
    return f"What is {PLACES[cell]}?", f"{_a(found.name).capitalize()}." if found else "Nothing."


def _exists(scene: Scene, rng: random.Random) -> tuple[str, str]:
    is_there = rng.random() < 0.5
    names = [thing.name for thing in scene.things]
    others = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES if f"{colour} {shape}" not in names]
    name = rng.choice(names if is_there else others)
    return f"Is there {_a(name)}?", f"Yes, there is {_a(name)}." if is_there else f"No, there is no {name}."


def _describe(scene: Scene, rng: random.Random) -> tuple[str, str]:
    text = rng.choice(("Describe this image.", "Describe this image in detail.", "What do you see?"))
    parts = [f"{_a(thing.name)} {thing.place}" for thing in scene.things]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return text, f"There is {listed}."


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


_MAKERS: dict[str, Callable[[Scene, random.Random], tuple[str, str] | None]] = {
    "colour": _colour,
    "count": _count,
    "place": _place,
    "what": _what,
    "exists": _exists,
    "describe": _describe,
}
