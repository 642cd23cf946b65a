"""Histograms as SVG inside a page, whose style sheet has their colours."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 22, 38
_GAP = 2.0
#: A count that is not zero can be seen.
_LEAST_HEIGHT = 2.0
_MOST_LABELS = 6


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram.

    Attributes:
        title: what is counted; axis: what the bins are of.
        counts: [N] of each bin.
        names: [N] of each bin, for a tooltip.
        edges: [N + 1] texts between the bins.
    """

    title: str
    axis: str
    counts: Sequence[int]
    names: Sequence[str]
    edges: Sequence[str]


def histogram(bars: Bars) -> str:
    """An SVG element; its text tells the highest count."""
    most = max(bars.counts, default=0)
    step = (_WIDTH - _LEFT - _RIGHT) / len(bars.counts)
    base = _HEIGHT - _BOTTOM
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(bars.title)}">',
        f'<line class="grid" x1="{_LEFT}" y1="{_TOP}" x2="{_WIDTH - _RIGHT}" y2="{_TOP}"/>',
        f'<text class="tick" x="{_LEFT}" y="{_TOP - 6}">{most:,}</text>',
    ]
    for index, (count, name) in enumerate(zip(bars.counts, bars.names, strict=True)):
        if count:
            height = max(_LEAST_HEIGHT, (base - _TOP) * count / most)
            parts.append(
                f'<rect class="bar" x="{_LEFT + index * step + _GAP / 2:.1f}" y="{base - height:.1f}" '
                f'width="{max(1.0, step - _GAP):.1f}" height="{height:.1f}">'
                f"<title>{html.escape(name)}: {count:,}</title></rect>"
            )
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - _RIGHT}" y2="{base}"/>')
    every = -(-len(bars.edges) // _MOST_LABELS)
    for index in range(0, len(bars.edges), every):
        anchor = "start" if index == 0 else "end" if index == len(bars.edges) - 1 else "middle"
        parts.append(
            f'<text class="tick" x="{_LEFT + index * step:.1f}" y="{base + 15}" text-anchor="{anchor}">'
            f"{html.escape(bars.edges[index])}</text>"
        )
    parts.append(
        f'<text class="tick" x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">'
        f"{html.escape(bars.axis)}</text>"
    )
    return "".join([*parts, "</svg>"])


def score_bars(counts: Sequence[int]) -> Bars:
    bins = len(counts)
    edges = [f"{index / bins:.2f}" for index in range(bins + 1)]
    names = [f"{low} to {high}" for low, high in itertools.pairwise(edges)]
    return Bars("Masks by score", "score (the model's estimate of the IoU)", counts, names, edges)


def doubling_bars(title: str, axis: str, counts: Sequence[int], scale: float = 1, unit: str = "") -> Bars:
    """Bins 0, 1, 2 to 3, 4 to 7, ...; those beyond the first and the last count are left out.

    Args:
        scale: of a bin's edges, for their texts.
    """
    used = [index for index, count in enumerate(counts) if count]
    first, last = (used[0], used[-1]) if used else (0, 1)
    bins = range(first, last + 1)
    edges = [_text(_edge(index) * scale) for index in range(first, last + 2)]
    if scale == 1:
        names = [_whole_range(_edge(index), _edge(index + 1) - 1) + unit for index in bins]
    else:
        names = [f"{low} to {high}{unit}" for low, high in itertools.pairwise(edges)]
    return Bars(title, axis, [counts[index] for index in bins], names, edges)


def _edge(index: int) -> int:
    """The least value of a doubling bin."""
    return 1 << (index - 1) if index else 0


def _whole_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _text(value: float) -> str:
    """A short text, with k, M and G from 10,000 on."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= max(size, 1e4):
            return f"{value / size:.3g}{suffix}"
    return f"{value:,.0f}" if value >= 1 else f"{value:.3g}"
