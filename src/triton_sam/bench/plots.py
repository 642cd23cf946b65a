"""Draws charts as PNG files with matplotlib, which the extra ``bench`` installs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import short
from triton_sam.errors import SetupError
from triton_sam.installation import install_extra

_DPI = 130
_PANEL = (7.2, 4.5)
#: Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#F0E442")


def draw(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Writes ``<name>.png`` for every chart. Raises SetupError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Picture
    except ImportError:
        raise SetupError(f"matplotlib is not installed, so no plots were drawn: {install_extra('bench')}") from None
    paths = []
    for chart in charts:
        width, height = _PANEL
        # Without pyplot: it keeps global state and looks for a display.
        picture = Picture(figsize=(width * len(chart.panels), height), layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.subplots(1, len(chart.panels), squeeze=False)[0]
        for panel_axes, panel in zip(axes, chart.panels, strict=True):
            _draw_panel(panel_axes, panel)
        picture.suptitle("\n".join(textwrap.wrap(chart.title, 78 * len(chart.panels))), fontsize=12)
        paths.append(folder / f"{chart.name}.png")
        picture.savefig(paths[-1], dpi=_DPI)
    return paths


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.kind == "lines":
        _lines(axes, panel)
    else:
        (_stacked if panel.kind == "stacked" else _bars)(axes, panel)
        axes.grid(visible=False, axis="x")
        room = max(7, 84 // max(1, len(panel.labels)))  # characters between two bars
        labels = ["\n".join(textwrap.wrap(label, room)) for label in panel.labels]
        axes.set_xticks(range(len(labels)), labels)
    reached = [value for curve in panel.curves for value in (*curve.y, *curve.high)]
    if panel.kind != "stacked" and reached and min(reached) >= 0 < max(reached):
        axes.set_ylim(0, 1.08 * max(reached))
    if len(panel.curves) > 1:
        # Below the axes: inside them it could cover data.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, fontsize=9)


def _lines(axes: Any, panel: Panel) -> None:
    if panel.doubling:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for curve in panel.curves for x in curve.x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    many = max((len(curve.y) for curve in panel.curves), default=0) > 40
    for colour, curve in zip(_cycled(panel.curves), panel.curves, strict=True):
        axes.plot(
            curve.x,
            curve.y,
            linestyle={"solid": "-", "dashed": "--", "points": "none"}[curve.style],
            marker="none" if curve.style == "dashed" else "." if many else "o",
            markersize=3 if many else 5,
            color=colour,
            linewidth=1.6,
            label=curve.name,
        )
        if curve.high:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: Any, panel: Panel) -> None:
    width = 0.8 / len(panel.curves)
    for index, (colour, curve) in enumerate(zip(_cycled(panel.curves), panel.curves, strict=True)):
        positions = [label + (index - (len(panel.curves) - 1) / 2) * width for label in range(len(curve.y))]
        ends = None
        if curve.high:
            below = [value - low for value, low in zip(curve.y, curve.low, strict=True)]
            above = [high - value for value, high in zip(curve.y, curve.high, strict=True)]
            ends = [[max(0.0, end) for end in side] for side in (below, above)]
        colours = colour if len(panel.curves) > 1 else _by_kind(panel.labels)
        axes.bar(positions, curve.y, width * 0.92, color=colours, label=curve.name)
        if ends is not None:
            axes.errorbar(positions, curve.y, ends, fmt="none", ecolor="#333333", elinewidth=1, capsize=3)
        for position, value in zip(positions, curve.y, strict=True):
            # At the foot of the bar: the error bar is at its top.
            axes.annotate(
                short(value),
                (position, 0),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
            )


def _stacked(axes: Any, panel: Panel) -> None:
    bottom = [0.0] * len(panel.labels)
    for colour, curve in zip(_cycled(panel.curves), panel.curves, strict=True):
        axes.bar(range(len(bottom)), curve.y, 0.55, bottom=bottom, color=colour, label=_with_values(curve))
        bottom = [below + value for below, value in zip(bottom, curve.y, strict=True)]
    for bar, total in enumerate(bottom):
        axes.annotate(short(total), (bar, total), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9)
    axes.margins(y=0.12)


def _with_values(curve: Curve) -> str:
    """The legend shows the values, because thin slices have no room for them."""
    return f"{curve.name} ({', '.join(short(value) for value in curve.y)})"


def _cycled(curves: Sequence[Curve]) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(curves))]


def _by_kind(labels: Sequence[str]) -> list[str]:
    """One colour for all labels that are equal up to the first comma."""
    kinds = [label.partition(",")[0] for label in labels]
    order = list(dict.fromkeys(kinds))
    return [_COLOURS[order.index(kind) % len(_COLOURS)] for kind in kinds]
