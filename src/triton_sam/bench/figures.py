"""What every measurement gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        bar: what ``value`` may be at most; least: what it must be at least. None where nothing is asked.
    """

    name: str
    value: float
    unit: str
    bar: float | None = None
    detail: str = ""
    least: float | None = None

    @property
    def reached(self) -> bool:
        return (self.bar is None or self.value <= self.bar) and (self.least is None or self.value >= self.least)
