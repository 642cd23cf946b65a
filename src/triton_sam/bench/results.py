"""The result of one run of a benchmark, in memory and as files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from triton_sam.bench import plots, report
from triton_sam.bench.charts import Chart
from triton_sam.bench.figures import Figure
from triton_sam.bench.machine import commit, machine
from triton_sam.bench.samples import Series
from triton_sam.errors import InvalidInput, SetupError

RESULT = "result.json"
TABLE = "result.md"


def command_line(program: str = "triton-sam") -> str:
    """The command as it was typed; paths that leave the working folder are reduced to their last part."""
    return f"{program} {shlex.join(map(_without_outside, sys.argv[1:]))}"


def _without_outside(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    outside = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return option + equals + (path.name if outside else value)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(slots=True)
class Result:
    """The result of one run of one command; filled while it runs.

    Attributes:
        about: what was measured (model, weights, image, server), each in a few words.
        notes: what was left out and why, a sentence each.
        series: the raw measurements behind the figures.
    """

    name: str
    figures: list[Figure] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=machine)
    command: str = field(default_factory=command_line)
    date: str = field(default_factory=_now)
    commit: str | None = field(default_factory=commit)

    @property
    def reached(self) -> bool:
        return all(figure.reached for figure in self.figures)

    def add(self, series: Series, figure: Figure | None = None) -> None:
        """Adds a series, and a figure: its median unless another is given."""
        self.series.append(series)
        self.figures.append(figure or series.figure())


def document(result: Result) -> dict[str, Any]:
    """The contents of ``result.json``: first where the figures come from, as in every file of docs/data."""
    found = asdict(result)
    first = ("name", "commit", "date", "machine", "command", "about", "notes", "figures")
    whole = {key: found[key] for key in first} | found
    whole["figures"] = [asdict(figure) | {"reached": figure.reached} for figure in result.figures]
    for series in whole["series"]:  # six digits are more than any clock resolves
        series["rounds"] = [[float(f"{value:.6g}") for value in values] for values in series["rounds"]]
    return whole


def _readable(whole: dict[str, Any]) -> str:
    """JSON with one figure or series on a line: a throughput run has tens of thousands of numbers."""

    def text(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        return json.dumps(value)

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text(value)}" for key, value in whole.items()) + "\n}\n"


_RESULT = TypeAdapter(Result)


def read(path: Path) -> Result:
    """Reads a ``result.json``, or that of a folder. Raises InvalidInput if it is not a result."""
    file = path / RESULT if path.is_dir() else path
    try:
        whole = json.loads(file.read_text())
        for figure in whole["figures"]:
            figure.pop("reached", None)
        # Older files have only the figures and the machine.
        unknown = {"name": "", "command": "", "date": "", "commit": None}
        return _RESULT.validate_python(unknown | whole)
    except OSError as error:
        raise InvalidInput(f"cannot read the result {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        raise InvalidInput(f"{file} is not a result of `triton-sam bench`: give its result.json or folder") from None


def write(result: Result, path: Path) -> str | None:
    """Writes ``result.json``, ``result.md`` and the plots to a folder. Returns a message if plots could not be drawn.

    Args:
        path: the folder; a name that ends in ``.json`` writes only that file.
    """
    text = _readable(document(result))
    if path.suffix == ".json":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return None
    path.mkdir(parents=True, exist_ok=True)
    (path / RESULT).write_text(text)
    (path / TABLE).write_text(_page(result))
    try:
        plots.draw(result.charts, path)
    except SetupError as error:
        return f"{error}; then `triton-sam bench plot {path}` draws them"
    return None


def _page(result: Result) -> str:
    lines = [f"# Benchmark: {result.name}", ""]
    lines += [f"- {name}: {value}" for name, value in result.about.items()]
    lines += [f"- `{result.command}`, {result.date}" + (f", commit {result.commit}" if result.commit else "")]
    lines += [f"- {note}" for note in result.notes]
    lines += ["", report.markdown(result.figures, result.machine)]
    lines += [f"![{chart.title}]({chart.name}.png)" for chart in result.charts]
    return "\n".join(lines) + "\n"
