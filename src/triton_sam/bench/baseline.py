"""Comparison of a run with an earlier one: regressions, and their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from triton_sam.bench.figures import Better, Figure, short
from triton_sam.bench.results import Result
from triton_sam.console import err, out

#: How much worse a figure may be before it counts as a regression.
TOLERANCE = 0.10
#: Facts that must be equal in both runs; otherwise a warning says that they may not be comparable.
_MODEL_FACTS = ("model", "weights", "image")
_MACHINE_FACTS = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class Change:
    """One figure, before and now."""

    name: str
    unit: str
    before: float
    now: float
    better: Better

    @property
    def ratio(self) -> float | None:
        """now / before; None if the earlier value is not positive."""
        return self.now / self.before if self.before > 0 else None

    @property
    def worse(self) -> bool:
        if self.ratio is None:
            return False
        return self.ratio > 1 + TOLERANCE if self.better == "lower" else self.ratio < 1 - TOLERANCE


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes between two runs.

    Attributes:
        missing: figures of the earlier run only; new: figures of this run only.
        warnings: why the two may not be comparable, a sentence each.
    """

    changes: list[Change]
    missing: list[str]
    new: list[str]
    warnings: list[str]

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.worse]

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        if not self.regressions:
            return f"no figure is more than {TOLERANCE:.0%} worse than in the baseline"
        named = "; ".join(f"{change.name} ({change.ratio:.2f} x)" for change in self.regressions)
        return f"worse than the baseline by more than {TOLERANCE:.0%}: {named}"


def compare(now: Result, before: Result) -> Comparison:
    """Compares all figures that have a direction."""
    current = {figure.name: figure for figure in now.figures}
    earlier = {figure.name: figure for figure in before.figures}
    changes = [
        Change(name, figure.unit, earlier[name].value, figure.value, figure.better)
        for name, figure in current.items()
        if name in earlier and figure.better is not None
    ]
    warnings = []
    if before.name and before.name != now.name:
        warnings.append(f"the baseline is a result of `bench {before.name}`, this run is `bench {now.name}`")
    here, there = {**now.machine, **now.about}, {**before.machine, **before.about}
    for fact in (*_MODEL_FACTS, *_MACHINE_FACTS):
        if here.get(fact) != there.get(fact):
            values = f"{there.get(fact, 'unknown')}, not {here.get(fact, 'unknown')}"
            warnings.append(f"the baseline was measured with another {fact}: {values}")
    return Comparison(changes, _only_in(earlier, current), _only_in(current, earlier), warnings)


def _only_in(here: Mapping[str, Figure], there: Mapping[str, Figure]) -> list[str]:
    return [name for name, figure in here.items() if figure.better is not None and name not in there]


def show(comparison: Comparison) -> None:
    """Prints the table, the figures that could not be compared, and the verdict."""
    for warning in comparison.warnings:
        err.print(f"warning: {warning}")
    table = Table("what", "baseline", "now", "now / baseline", "better")
    for change in comparison.changes:
        style = "red" if change.worse else ""
        ratio = "no ratio" if change.ratio is None else f"{change.ratio:.3f}"
        values = (f"{short(value)} {change.unit}" for value in (change.before, change.now))
        table.add_row(change.name, *values, Text(ratio, style=style), change.better)
    out.print(table)
    for words, names in (
        ("in the baseline, but not measured now", comparison.missing),
        ("not in the baseline", comparison.new),
    ):
        if names:
            out.print(f"{words}: {'; '.join(names)}")
    (err if comparison.regressions else out).print(comparison.verdict)
