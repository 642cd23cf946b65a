"""Times of one thing, taken in rounds, and what is said of them."""

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
    """What was measured, as it came.

    Attributes:
        rounds: of each round its values, in ``unit``. Rounds lie apart in time, so what differs between them is the
            machine's drift, and what differs inside one is its noise.
    """

    name: str
    unit: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def values(self) -> list[float]:
        """Those of all rounds, in order."""
        return [value for values in self.rounds for value in values]

    @property
    def median(self) -> float:
        return median(self.values)

    def percentile(self, percent: float) -> float:
        """Interpolated between neighbours: of few values the 99th is nearly the largest."""
        return float(np.percentile(self.values, percent))

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest of the rounds' medians."""
        medians = [median(values) for values in self.rounds if values]
        return min(medians), max(medians)

    @property
    def detail(self) -> str:
        low, high = (short(value) for value in self.spread)
        tail = f"p95 {short(self.percentile(95))}, p99 {short(self.percentile(99))}"
        return f"{tail}; {len(self.values)} in {len(self.rounds)} rounds (medians {low} to {high})"

    def figure(self, name: str | None = None, *, bar: float | None = None, detail: str = "") -> Figure:
        """The median as a line of the table; of times the lower is the better."""
        said = "; ".join(part for part in (self.detail, detail) if part)
        return Figure(name or self.name, self.median, self.unit, bar, said, better="lower")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: how often everything is gone through.
        samples: measurements of each kind in a round.
        warm_up: measurements of each kind before, which do not count.
        settle: seconds of rest before each.
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
    """A call as something that says how many seconds it took."""
    return lambda: seconds(action)


def in_turns(actions: Mapping[str, Clock], plan: Plan) -> dict[str, Series]:
    """Name -> milliseconds; each action gives its own seconds.

    The order is another one every time, and each waits until the machine is idle: onnxruntime's threads go on
    spinning for tens of milliseconds after a run, and whoever came next would pay for it.
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
    """Of two that were measured in turns, the ratio of each pair."""
    pairs = zip(above.rounds, below.rounds, strict=True)
    rounds = (tuple(one / other for one, other in zip(mine, theirs, strict=True)) for mine, theirs in pairs)
    return Series(name, "x", tuple(rounds))


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points: ``value = start + slope * x``."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        return self.start + self.slope * x


def fitted(x: Sequence[float], y: Sequence[float]) -> Line:
    """Least squares; one point alone lies on a level line."""
    if len(set(x)) < 2:
        return Line(float(np.mean(y)), 0.0)
    slope, start = np.polyfit(x, y, 1)
    return Line(float(start), float(slope))
