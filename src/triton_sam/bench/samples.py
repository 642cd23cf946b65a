"""Measurements taken in rounds and in turns, and their statistics."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from triton_sam.bench.figures import Figure, short

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Series:
    """The raw measurements of one thing.

    Attributes:
        rounds: the values of each round, in ``unit``. Rounds are apart in time: differences between rounds are the
            machine's drift, differences within a round are noise.
    """

    name: str
    unit: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def values(self) -> list[float]:
        """The values of all rounds, in order."""
        return [value for values in self.rounds for value in values]

    @property
    def median(self) -> float:
        return median(self.values)

    def percentile(self, percent: float) -> float:
        """Interpolated between neighbours: with few values the 99th is nearly the largest."""
        return float(np.percentile(self.values, percent))

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest median of a round."""
        medians = [median(values) for values in self.rounds if values]
        return min(medians), max(medians)

    @property
    def detail(self) -> str:
        low, high = (short(value) for value in self.spread)
        tail = f"p95 {short(self.percentile(95))}, p99 {short(self.percentile(99))}"
        return f"{tail}; {len(self.values)} in {len(self.rounds)} rounds (medians {low} to {high})"

    def figure(self, name: str | None = None, *, bar: float | None = None, detail: str = "") -> Figure:
        """The median as a figure of which lower is better."""
        details = "; ".join(part for part in (self.detail, detail) if part)
        return Figure(name or self.name, self.median, self.unit, bar, details, better="lower")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        samples: measurements of each kind in a round.
        warm_up: measurements of each kind before the first round, which do not count.
        settle: seconds of rest before each measurement.
    """

    rounds: int = 5
    samples: int = 4
    warm_up: int = 2
    settle: float = 0.1


def seconds(action: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def timed(action: Callable[[], object]) -> Clock:
    """Wraps a call so that it returns how many seconds it took."""
    return lambda: seconds(action)


def in_turns(actions: Mapping[str, Clock], plan: Plan) -> dict[str, Series]:
    """Measures actions in turns. Each action returns its own seconds; the result is name -> milliseconds.

    The order is shuffled for every turn, and the machine rests before each action: onnxruntime's threads spin for
    tens of milliseconds after a run, which would slow down the next action.
    """
    order = list(actions)
    shuffle = random.Random(0).shuffle

    def turn() -> dict[str, float]:
        shuffle(order)
        spent = {}
        for name in order:
            time.sleep(plan.settle)
            spent[name] = actions[name]() * 1e3
        return spent

    for _ in range(plan.warm_up):
        turn()
    rounds = [[turn() for _ in range(plan.samples)] for _ in range(plan.rounds)]
    return {
        name: Series(name, "ms", tuple(tuple(spent[name] for spent in turns) for turns in rounds)) for name in actions
    }


def ratio(name: str, above: Series, below: Series) -> Series:
    """The ratio of each pair of values of two series that were measured in turns."""
    pairs = zip(above.rounds, below.rounds, strict=True)
    rounds = (tuple(top / bottom for top, bottom in zip(tops, bottoms, strict=True)) for tops, bottoms in pairs)
    return Series(name, "x", tuple(rounds))


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points: ``value = start + slope * x``."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        return self.start + self.slope * x


def fitted(x: Sequence[float], y: Sequence[float]) -> Line:
    """The least-squares line; horizontal if all x are equal."""
    if len(set(x)) < 2:
        return Line(float(np.mean(y)), 0.0)
    slope, start = np.polyfit(x, y, 1)
    return Line(float(start), float(slope))
