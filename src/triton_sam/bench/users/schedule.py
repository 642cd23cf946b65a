"""When a person moves the mouse, clicks and opens an image: fixed by a seed, the same in every run."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: Prompts keep this distance from the edges of the image, as a fraction of its sides.
_MARGIN = 0.02


class Kind(enum.Enum):
    """What a person does at one moment."""

    HOVER = "hover"
    LAST_HOVER = "last hover"
    """The last one of a movement: the mouse rests afterwards, and its mask is what the person looks at."""
    CLICK = "click"
    IMAGE = "image"


class Step(NamedTuple):
    """One action: seconds from the start; x and y as fractions of the image's sides (0 for a new image)."""

    at: float
    kind: Kind
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How people work: movement, pause, click, pause, next movement.

    Attributes:
        hover_rate: hovers a second while the mouse moves.
        movement: the shortest and the longest movement, in seconds.
        pause: the same of the pauses before and after a click.
        image_seconds: every so many seconds a person opens a new image.
    """

    hover_rate: float = 20.0
    movement: tuple[float, float] = (0.5, 2.5)
    pause: tuple[float, float] = (0.3, 1.5)
    image_seconds: float = 60.0


def schedule(person: int, people: int, seconds: float, behaviour: Behaviour, seed: int = 0) -> list[Step]:
    """The steps of one person for ``seconds``, in order of time.

    People open their images in turns, so that any stretch of time has the same load.
    """
    chance = random.Random(f"{seed} {person}")
    first_image = behaviour.image_seconds * (person + 0.5) / people
    return [step for step in _steps(chance, first_image, behaviour, seconds) if step.at < seconds]


def _steps(chance: random.Random, image_at: float, behaviour: Behaviour, seconds: float) -> Iterator[Step]:
    x, y = _place(chance), _place(chance)
    now = chance.uniform(0.0, behaviour.pause[1])  # people do not begin at the same moment
    while min(now, image_at) < seconds:
        if now >= image_at:
            yield Step(image_at, Kind.IMAGE)
            now = image_at + chance.uniform(*behaviour.pause)
            image_at += behaviour.image_seconds
            continue
        # A movement, cut short by the next image.
        ends = min(now + chance.uniform(*behaviour.movement), image_at)
        count = max(1, int((ends - now) * behaviour.hover_rate))
        to_x, to_y = _place(chance), _place(chance)
        for number in range(1, count + 1):
            share = number / count
            kind = Kind.LAST_HOVER if number == count else Kind.HOVER
            at = now + (number - 1) / behaviour.hover_rate
            yield Step(at, kind, x + (to_x - x) * share, y + (to_y - y) * share)
        x, y = to_x, to_y
        now += count / behaviour.hover_rate + chance.uniform(*behaviour.pause)
        if now < image_at:
            yield Step(now, Kind.CLICK, x, y)
            now += chance.uniform(*behaviour.pause)


def _place(chance: random.Random) -> float:
    return chance.uniform(_MARGIN, 1.0 - _MARGIN)
