"""Figures as tables: on the terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from triton_sam.bench.figures import Figure, short
from triton_sam.console import err, out


def show(figures: Sequence[Figure]) -> None:
    """Prints the table, and the names of missed bars."""
    table = Table("what", "measured", "must be", "detail")
    for figure in figures:
        measured = Text(f"{short(figure.value)} {figure.unit}", style="green" if figure.reached else "red")
        table.add_row(figure.name, measured, _bar(figure), figure.detail)
    out.print(table)
    missed = [figure.name for figure in figures if not figure.reached]
    if missed:
        err.print(f"not reached: {'; '.join(missed)}")


def markdown(figures: Sequence[Figure], about: Mapping[str, str]) -> str:
    """A table with every figure, and ``about`` in a line below it."""
    rows = ["| what | measured | must be | detail |", "|---|---|---|---|"]
    for figure in figures:
        bar = f"{_bar(figure)} {figure.unit}".strip() if _bar(figure) else ""
        rows.append(f"| {figure.name} | {short(figure.value)} {figure.unit} | {bar} | {figure.detail} |")
    return "\n".join([*rows, "", "; ".join(f"{name} {value}" for name, value in about.items()), ""])


def _bar(figure: Figure) -> str:
    if figure.least is not None:
        return f">= {short(figure.least)}"
    return "" if figure.bar is None else f"<= {short(figure.bar)}"
