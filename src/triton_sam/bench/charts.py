"""Plots as data: what a result keeps, so that they can be drawn where and when there is something to draw with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: lines: y over x; bars: side by side for each label; stacked: upon each other for each label.
Kind = Literal["lines", "bars", "stacked"]
Style = Literal["solid", "dashed", "points"]


@dataclass(frozen=True, slots=True)
class Curve:
    """One thing in a panel.

    Attributes:
        x: for lines, as many as ``y``; else the panel's labels stand for it.
        low, high: ends of an error bar for each ``y``, or nothing.
    """

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    style: Style = "solid"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; what they say has its unit in it.

    Attributes:
        labels: of the bars, one for each ``y`` of every curve.
        doubling: whether x grows by factors of two.
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve]
    kind: Kind = "lines"
    labels: Sequence[str] = ()
    doubling: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture; ``name`` is its file's without a suffix."""

    name: str
    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)
