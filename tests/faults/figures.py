"""Records the figures of docs/how/reliability.md, most of which parts of ``make test-all`` measure."""

from __future__ import annotations

import datetime
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from triton_sam.bench.machine import machine


def record(name: str, fault: str, figures: dict[str, tuple[Any, str]]) -> None:
    """Writes figures for docs/how/reliability.md to the folder TRITON_SAM_FAULTS_OUT; does nothing if that is not set.

    Args:
        name: name of the file, without its suffix.
        fault: the row's first column: what was done.
        figures: what was measured -> (value, required value); the latter is text, "" if there is none.
    """
    folder = os.environ.get("TRITON_SAM_FAULTS_OUT")
    if folder:
        rows = [{"what": what, "value": value, "bar": bar} for what, (value, bar) in figures.items()]
        path = Path(folder) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"fault": fault, **_head(), "figures": rows}, indent=1) + "\n")


def _head() -> dict[str, Any]:
    """As every file of docs/data has one."""
    part = next((word for word in sys.argv if word.startswith("--part=")), "")
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
        "command": f"make test-all PART={part.partition('=')[2]}" if part else f"python -m pytest {test}",
    }


@functools.cache
def _commit() -> str:
    """The measured commit, with a ``+`` if files differ from it; "" outside a clone."""
    words = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
