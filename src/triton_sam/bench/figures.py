"""What every measurement gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        bar: what ``value`` may be at most; least: what it must be at least. None where nothing is asked.
        better: which way is an improvement; None for what is told but not compared with an earlier run.
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
    """Three figures, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
