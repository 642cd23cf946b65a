"""Figures for people and for files."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from triton_sam import __version__
from triton_sam.bench.figures import Figure
from triton_sam.console import err, out

_PACKAGES = ("onnxruntime", "numpy", "nvidia-pytriton")


def show(figures: list[Figure]) -> None:
    """Prints the table, and which bars were missed."""
    table = Table("what", "measured", "bar", "detail")
    for figure in figures:
        bar = _bar(figure)
        measured = Text(f"{_short(figure.value)} {figure.unit}", style="green" if figure.reached else "red")
        table.add_row(figure.name, measured, bar, figure.detail)
    out.print(table)
    missed = [figure.name for figure in figures if not figure.reached]
    if missed:
        err.print(f"not reached: {'; '.join(missed)}")


def write(figures: list[Figure], path: Path, about: dict[str, str] | None = None) -> None:
    """As JSON, with the machine they depend on: this one where ``about`` does not describe it."""
    document = {
        "machine": about or machine(),
        "figures": [asdict(figure) | {"reached": figure.reached} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def machine(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """What the figures depend on."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "triton-sam": __version__,
        **versions,
    }


def markdown(figures: list[Figure], about: dict[str, str]) -> str:
    """The table of docs/performance.md."""
    rows = ["| what | measured | bar | detail |", "|---|---|---|---|"]
    for figure in figures:
        bar = f"{_bar(figure)} {figure.unit}".strip() if _bar(figure) else ""
        rows.append(f"| {figure.name} | {_short(figure.value)} {figure.unit} | {bar} | {figure.detail} |")
    return "\n".join([*rows, "", "; ".join(f"{name} {value}" for name, value in about.items()), ""])


def _bar(figure: Figure) -> str:
    if figure.least is not None:
        return f">= {_short(figure.least)}"
    return "" if figure.bar is None else f"<= {_short(figure.bar)}"


def _short(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
