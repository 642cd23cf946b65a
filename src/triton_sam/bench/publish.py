"""The end of a benchmark: prints the result, writes its files, and compares it with a baseline."""

from __future__ import annotations

from pathlib import Path

from triton_sam.bench import baseline as baselines
from triton_sam.bench import report, results
from triton_sam.bench.results import Result
from triton_sam.console import err, out


def publish(result: Result, output: Path | None, baseline: Path | None) -> bool:
    """Returns whether every bar was reached and no figure is worse than the baseline's.

    Args:
        output: a folder, or a ``.json`` file; None writes nothing.
        baseline: an earlier result to compare with.
    """
    before = results.read(baseline) if baseline is not None else None
    for note in result.notes:
        out.print(note)
    report.show(result.figures)
    if output is not None:
        missing_plots = results.write(result, output)
        if missing_plots is not None:
            err.print(missing_plots)
        out.print(f"written: {output}")
    if before is None:
        return result.reached
    comparison = baselines.compare(result, before)
    baselines.show(comparison)
    return result.reached and not comparison.regressions
