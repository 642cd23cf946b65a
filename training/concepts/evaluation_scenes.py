"""The second generator, for evaluation alone: scenes drawn with Pillow, and questions in other phrases.

It shares nothing with the first one but the names of the attributes: outlines, palettes, grounds, layouts and phrases
are its own. What belongs to a concept follows the same rule: described by the text, or with the shape and the colour
of a positive exemplar, and without the shape and the colour of a negative one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.concepts.evaluation_pictures import draw
from training.concepts.words import ANY, COLOURS, SHAPES, TEXTURES, Concept

#: Numbers of scenes; a scene's number is its seed.
COUNT = 300
_BASE = 27_000_000
_SIDES = (400, 448, 480, 560)
_PLURALS = {"cross": "crosses"}
_LEAST_VISIBLE = 0.55


@dataclass(frozen=True)
class Thing:
    """One thing of a scene.

    Attributes:
        shape, colour, size, texture: numbers of the attributes.
        mask: [H,W], what is visible.
        box: xyxy of the mask, pixels.
    """

    shape: int
    colour: int
    size: int
    texture: int
    mask: npt.NDArray[np.bool_]
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Asked:
    """A concept and what belongs to it.

    Attributes:
        kind: for the figures: colour, shape, exemplars...; those of nothing begin with "absent".
        exemplars: xyxy in pixels; labels: 1 or 0.
        found: numbers of things.
    """

    kind: str
    text: str | None
    exemplars: tuple[tuple[float, float, float, float], ...]
    labels: tuple[int, ...]
    found: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """A picture [H,W,3], its things, the concepts that are asked for, and clicks (number of a thing, x, y)."""

    picture: npt.NDArray[np.uint8]
    things: tuple[Thing, ...]
    asked: tuple[Asked, ...]
    clicks: tuple[tuple[int, float, float], ...]


def make_scene(number: int) -> Scene:
    """The scene of a number, always the same one."""
    rng = np.random.default_rng(_BASE + number)
    side = int(rng.choice(_SIDES))
    picture, owners, drawn = draw(rng, side)
    things = []
    for index, (attributes, whole) in enumerate(drawn, 1):
        mask = owners == index
        if mask.sum() >= _LEAST_VISIBLE * whole:
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
            things.append(Thing(*attributes, mask, box))
    asked = _asked(things, rng)
    return Scene(picture, tuple(things), asked, _clicks(things, rng))


# -- questions ---------------------------------------------------------------------------------------------------


def _asked(things: list[Thing], rng: np.random.Generator) -> tuple[Asked, ...]:
    """Three concepts in words that are there, two or three that are not, two with exemplars."""
    asked = []
    for kind in rng.permutation([*_NAMED])[:3]:
        thing = things[int(rng.integers(len(things)))]
        named = _NAMED[str(kind)]
        concept = Concept(*(_attributes(thing)[place] if place in named else ANY for place in range(4)))
        asked.append(_in_words(str(kind), concept, things, rng))
    for hard in (True, True, False):
        concept = _absent(things, hard, rng)
        if concept is not None:
            asked.append(_in_words("absent, similar" if hard else "absent, other", concept, things, rng))
    asked.append(_by_example(things, None, rng))
    words = _in_words("", _concept_of(things[int(rng.integers(len(things)))], rng), things, rng)
    asked.append(_by_example(things, words, rng))
    return tuple(asked)


#: Kinds of concepts, with the places of the attributes that are named.
_NAMED: dict[str, tuple[int, ...]] = {
    "shape": (0,),
    "colour": (1,),
    "colour and shape": (0, 1),
    "size and shape": (0, 2),
    "texture and shape": (0, 3),
    "size, colour and shape": (0, 1, 2),
    "texture and colour": (1, 3),
    "everything": (),
}


def _attributes(thing: Thing) -> tuple[int, int, int, int]:
    return thing.shape, thing.colour, thing.size, thing.texture


def _concept_of(thing: Thing, rng: np.random.Generator) -> Concept:
    named = [(0,), (0, 1), (1,)][int(rng.integers(3))]
    return Concept(*(_attributes(thing)[place] if place in named else ANY for place in range(4)))


def _fitting(concept: Concept, things: list[Thing]) -> tuple[int, ...]:
    return tuple(number for number, thing in enumerate(things) if concept.fits(*_attributes(thing)))


def _absent(things: list[Thing], hard: bool, rng: np.random.Generator) -> Concept | None:
    """A concept of nothing in the scene; a hard one has attributes that are there, but on other things."""
    for _ in range(40):
        one, other = (_attributes(things[int(index)]) for index in rng.integers(len(things), size=2))
        if hard:
            changed = int(rng.integers(2))
            attributes = [one[0], one[1], ANY, ANY]
            attributes[changed] = other[changed]
            if rng.random() < 0.3:  # the right colour and shape, but the wrong size
                attributes = [one[0], one[1], 1 - one[2], ANY]
        else:
            attributes = [int(rng.integers(len(SHAPES))), int(rng.integers(len(COLOURS))), ANY, ANY]
        concept = Concept(*attributes)
        if not _fitting(concept, things):
            return concept
    return None


def _in_words(kind: str, concept: Concept, things: list[Thing], rng: np.random.Generator) -> Asked:
    return Asked(kind, _phrase(concept, rng), (), (), _fitting(concept, things))


def _phrase(concept: Concept, rng: np.random.Generator) -> str:
    """Phrases of known words, made in another way than those of training."""
    plural = bool(rng.random() < 0.6)
    noun = SHAPES[concept.shape] if concept.shape != ANY else str(rng.choice(("object", "shape", "thing")))
    noun = (_PLURALS.get(noun, f"{noun}s")) if plural else noun
    colour = COLOURS[concept.colour] if concept.colour != ANY else ""
    size = (
        str(rng.choice((("small", "little", "tiny"), ("large", "big", "huge"))[concept.size]))
        if concept.size != ANY
        else ""
    )
    texture = TEXTURES[concept.texture] if concept.texture != ANY else ""
    adjectives = " ".join(word for word in (size, texture, colour) if word)
    are = "are" if plural else "is"
    forms = [f"{adjectives} {noun}", f"{'the' if plural else 'a'} {adjectives} {noun}"]
    forms.append(f"{'all the' if plural else 'every'} {adjectives} {noun}")
    if colour:
        forms.append(f"{size} {texture} {noun} in {colour}")
        forms.append(f"{size} {texture} {noun} that {are} {colour}")
    if not colour and not size and not texture and concept.shape == ANY:
        forms = ["everything", "all objects", "shapes", "all the things"]
    text = " ".join(str(rng.choice(forms)).split())
    return f"an{text[1:]}" if text.startswith("a ") and text[2] in "aeiou" else text


def _by_example(things: list[Thing], words: Asked | None, rng: np.random.Generator) -> Asked:
    """One or two positive boxes, with words or without, and sometimes a negative one."""
    if words is None:
        first = things[int(rng.integers(len(things)))]
        found = _like(first, things)
        kind = "exemplars"
    else:
        first = things[words.found[int(rng.integers(len(words.found)))]]
        found = words.found
        kind = "words and exemplars"
    given = [first]
    if len(found) > 2 and rng.random() < 0.4:
        given.append(things[found[int(rng.integers(len(found)))]])
        found = tuple(sorted({*found, *_like(given[1], things)}))
    labels = [1] * len(given)
    others = [number for number in (words.found if words else range(len(things))) if number not in _like(first, things)]
    if others and len(given) == 1 and rng.random() < 0.6:
        against = things[others[int(rng.integers(len(others)))]]
        given.append(against)
        labels.append(0)
        found = tuple(number for number in found if number not in _like(against, things))
        kind += ", one negative"
    boxes = tuple(_by_hand(thing.box, rng) for thing in given)
    return Asked(kind, words.text if words else None, boxes, tuple(labels), tuple(found))


def _like(thing: Thing, things: list[Thing]) -> tuple[int, ...]:
    return tuple(number for number, one in enumerate(things) if (one.shape, one.colour) == (thing.shape, thing.colour))


def _by_hand(box: tuple[float, float, float, float], rng: np.random.Generator) -> tuple[float, float, float, float]:
    """A box as somebody draws it, some pixels off."""
    x0, y0, x1, y1 = box
    off = rng.uniform(-0.05, 0.05, 4) * [x1 - x0, y1 - y0, x1 - x0, y1 - y0]
    return x0 + off[0], y0 + off[1], x1 + off[2], y1 + off[3]


def _clicks(things: list[Thing], rng: np.random.Generator) -> tuple[tuple[int, float, float], ...]:
    """The pixel of a thing that is farthest from its border, for two things."""
    made = []
    for number in rng.permutation(len(things))[:2]:
        inner = things[int(number)].mask
        while True:
            padded = np.pad(inner, 1)
            smaller = inner & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
            if not smaller.any():
                break
            inner = smaller
        y, x = np.argwhere(inner)[0]
        made.append((int(number), float(x), float(y)))
    return tuple(made)
