"""A run against an earlier one: what became worse, and by how much."""

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
#: What two runs must share for their figures to be compared without a warning.
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
        """now / before; None where the one before is not above 0, and no ratio says anything."""
        return self.now / self.before if self.before > 0 else None

    @property
    def worse(self) -> bool:
        if self.ratio is None:
            return False
        return self.ratio > 1 + TOLERANCE if self.better == "lower" else self.ratio < 1 - TOLERANCE


@dataclass(frozen=True, slots=True)
class Comparison:
    """Attributes:
    missing: figures of the earlier run that this one does not have; new: the other way round.
    warnings: why the two may not be comparable: a sentence each.
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
        """One sentence."""
        if not self.regressions:
            return f"no figure is more than {TOLERANCE:.0%} worse than in the baseline"
        named = "; ".join(f"{change.name} ({change.ratio:.2f} x)" for change in self.regressions)
        return f"worse than the baseline by more than {TOLERANCE:.0%}: {named}"


def compare(now: Result, before: Result) -> Comparison:
    """Of all figures that have a direction."""
    mine = {figure.name: figure for figure in now.figures}
    theirs = {figure.name: figure for figure in before.figures}
    changes = [
        Change(name, figure.unit, theirs[name].value, figure.value, figure.better)
        for name, figure in mine.items()
        if name in theirs and figure.better is not None
    ]
    warnings = []
    if before.name and before.name != now.name:
        warnings.append(f"the baseline is of `bench {before.name}`, and this is `bench {now.name}`")
    here, there = {**now.machine, **now.about}, {**before.machine, **before.about}
    for fact in (*_MODEL_FACTS, *_MACHINE_FACTS):
        if here.get(fact) != there.get(fact):
            theirs_is, mine_is = there.get(fact, "unknown"), here.get(fact, "unknown")
            warnings.append(f"the baseline has another {fact} ({theirs_is}) than this run ({mine_is})")
    return Comparison(changes, _only_in(theirs, mine), _only_in(mine, theirs), warnings)


def _only_in(here: Mapping[str, Figure], there: Mapping[str, Figure]) -> list[str]:
    return [name for name, figure in here.items() if figure.better is not None and name not in there]


def show(comparison: Comparison) -> None:
    """Prints the table, what could not be compared, and the verdict."""
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
