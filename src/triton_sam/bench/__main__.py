"""``python -m triton_sam.bench``: the server against the bare graphs; prints a table and writes JSON and Markdown."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from triton_sam.bench import measure, report
from triton_sam.bench.figures import Figure
from triton_sam.bench.measure import BareGraphs
from triton_sam.catalog import DEFAULT_MODEL, FAMILY_DEFAULTS, get_spec
from triton_sam.demo import sample_photograph
from triton_sam.errors import InvalidInput
from triton_sam.model_folders import newest_version
from triton_sam.serving import Ports, prepare, serving
from triton_sam.settings import get_settings


def collect(model_id: str, rounds: int) -> list[Figure]:
    """All figures, one after the other, on a server of its own."""
    settings = get_settings()
    served = prepare([model_id], settings, None)
    name, spec = next(iter(served.segmenters.items()))
    model = served.repository / name
    graphs = model / str(newest_version(model))  # the very files that are served, ready-made or exported
    bare = BareGraphs(spec, graphs / "encoder.onnx", graphs / "decoder.onnx")
    sample = sample_photograph()
    started = time.perf_counter()
    with serving(served.repository, served.segmenters, settings, ports=Ports(0, 0, 0, 0)) as running:
        ready = time.perf_counter() - started
        figures = [Figure("start until ready", ready, "s", 10.0, "model installed")]
        figures += measure.encode(running, bare, spec, sample, max(3, rounds * 3 // 5))
        figures += measure.click(running, bare, spec, sample, rounds)
        figures += measure.click_during_encode(running, sample, rounds)
        figures += measure.recovery(running, sample, ready)
    return figures


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
    about = report.machine()
    figures = collect(spec.id, options.rounds)
    report.show(figures)
    options.output.mkdir(parents=True, exist_ok=True)
    report.write(figures, options.output / "result.json")
    (options.output / "result.md").write_text(report.markdown(figures, about))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
