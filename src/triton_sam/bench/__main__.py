"""``python -m triton_sam.bench``: the server against the bare graphs; prints a table and writes JSON and Markdown."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from triton_sam import __version__
from triton_sam.bench import measure
from triton_sam.bench.measure import BareGraphs, Figure
from triton_sam.catalog import DEFAULT_MODEL, FAMILY_DEFAULTS, get_spec
from triton_sam.console import err, out
from triton_sam.demo import sample_photograph
from triton_sam.errors import InvalidInput
from triton_sam.model_folders import newest_version
from triton_sam.serving import Ports, prepare, serving
from triton_sam.settings import get_settings


def collect(model_id: str, rounds: int) -> list[Figure]:
    """All figures, one after the other, on a server of its own."""
    settings = get_settings()
    repository, segmenters = prepare([model_id], settings, None)
    name, spec = next(iter(segmenters.items()))
    model = repository / name
    graphs = model / str(newest_version(model))  # the very files that are served, ready-made or exported
    bare = BareGraphs(spec, graphs / "encoder.onnx", graphs / "decoder.onnx")
    sample = sample_photograph()
    started = time.perf_counter()
    with serving(repository, segmenters, settings, ports=Ports(0, 0, 0, 0)) as running:
        ready = time.perf_counter() - started
        figures = [Figure("start until ready", ready, "s", 10.0, "model installed")]
        figures += measure.encode(running, bare, spec, sample, max(3, rounds * 3 // 5))
        figures += measure.click(running, bare, spec, sample, rounds)
        figures += measure.click_during_encode(running, sample, rounds)
        figures += measure.recovery(running, sample, ready)
    return figures


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    versions = {name: importlib.metadata.version(name) for name in ("onnxruntime", "numpy", "nvidia-pytriton")}
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
        bar = "" if figure.bar is None else f"<= {figure.bar:.3g} {figure.unit}"
        rows.append(f"| {figure.name} | {figure.value:.3g} {figure.unit} | {bar} | {figure.detail} |")
    return "\n".join([*rows, "", "; ".join(f"{name} {value}" for name, value in about.items()), ""])


def main() -> int:
    """Runs the benchmark; exit code 1 when a bar is not reached."""
    parser = argparse.ArgumentParser(prog="python -m triton_sam.bench", description=__doc__)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="an id, or a family for its default model; %(default)s if left out"
    )
    parser.add_argument("--rounds", type=int, default=40, help="repetitions of each click; encodes three fifths of it")
    parser.add_argument(
        "--output", type=Path, default=Path("bench/results"), help="folder for result.json and result.md"
    )
    options = parser.parse_args()
    try:
        spec = get_spec(FAMILY_DEFAULTS.get(options.model, options.model))
    except InvalidInput as error:
        parser.error(str(error))
    about = machine()
    figures = collect(spec.id, options.rounds)
    table = Table("what", "measured", "bar", "detail")
    for figure in figures:
        bar = "" if figure.bar is None else f"<= {figure.bar:.3g}"
        measured = Text(f"{figure.value:.3g} {figure.unit}", style="green" if figure.reached else "red")
        table.add_row(figure.name, measured, bar, figure.detail)
    out.print(table)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "figures": [asdict(figure) | {"reached": figure.reached} for figure in figures]}
    (options.output / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    (options.output / "result.md").write_text(markdown(figures, about))
    missed = [figure.name for figure in figures if not figure.reached]
    if missed:
        err.print(f"not reached: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
