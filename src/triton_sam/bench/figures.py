"""A measured figure: the unit of every result table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        bar: the largest ``value`` that passes; least: the smallest. None if there is no such bar.
        better: which direction is an improvement; None if the figure is not compared with a baseline.
    """

    name: str
    value: float
    unit: str
    bar: float | None = None
    detail: str = ""
    least: float | None = None
    better: Better | None = None

    @property
    def reached(self) -> bool:
        return (self.bar is None or self.value <= self.bar) and (self.least is None or self.value >= self.least)


def short(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
