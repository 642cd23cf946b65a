"""Plots as data. A result stores them, so that they can be drawn later on a machine that has matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: lines: y over x; bars: side by side for each label; stacked: on top of each other for each label.
Kind = Literal["lines", "bars", "stacked"]
Style = Literal["solid", "dashed", "points"]


@dataclass(frozen=True, slots=True)
class Curve:
    """One data series in a panel.

    Attributes:
        x: for lines, as many as ``y``; for bars it is empty, and the panel's labels are used.
        low, high: the ends of an error bar for each ``y``; empty for none.
    """

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    style: Style = "solid"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; their labels include the unit.

    Attributes:
        labels: of the bars, one for each ``y`` of every curve.
        doubling: whether the x axis is logarithmic with base 2.
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve]
    kind: Kind = "lines"
    labels: Sequence[str] = ()
    doubling: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One image file; ``name`` is the file name without a suffix."""

    name: str
    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)
