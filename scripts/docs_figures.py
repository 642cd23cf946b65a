"""Reads docs/data/*.json: each file has a head (commit, date, machine, command) and figures."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from triton_sam.bench.figures import Figure, short

DATA = Path(__file__).resolve().parent.parent / "docs" / "data"
HEAD = ("commit", "date", "machine", "command")


@functools.cache
def document(file: str) -> dict[str, Any]:
    """``docs/data/<file>.json``."""
    found: dict[str, Any] = json.loads((DATA / f"{file}.json").read_text())
    return found


def figures(file: str) -> list[Figure]:
    """All figures of a file."""
    return [Figure(**{k: v for k, v in row.items() if k != "reached"}) for row in document(file)["figures"]]


def find(file: str, name: str) -> Figure:
    """One figure; ValueError with those that are there."""
    known = {figure.name: figure for figure in figures(file)}
    if name not in known:
        raise ValueError(f"docs/data/{file}.json has no figure {name!r}, only {sorted(known)}")
    return known[name]


def shown(figure: Figure, *, bar: bool = False) -> str:
    """Value and unit as people say them: seconds from 1,000 milliseconds on, ratios as times.

    Args:
        bar: the value that it must reach, in place of its own; "" without one.
    """
    if bar and figure.bar is None and figure.least is None:
        return ""
    sign, value = "", figure.value
    if bar:
        sign, value = ("≤ ", figure.bar) if figure.bar is not None else ("≥ ", figure.least or 0.0)
    unit = figure.unit
    if unit == "ms" and abs(value) >= 1000:
        value, unit = value / 1000, "s"
    text = f"{value:,.0f}" if abs(value) >= 1000 else short(value)
    return f"{sign}{text} {unit}".strip()


def machine(file: str) -> str:
    """Its hardware in words."""
    about = document(file)["machine"]
    return ", ".join(str(about[part]) for part in ("gpu", "cpu") if part in about)
