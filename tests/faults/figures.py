"""Where the figures of docs/reliability.md go: most are measured by parts of ``make test-all``."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any


def record(name: str, fault: str, figures: dict[str, tuple[Any, str]]) -> None:
    """Keeps figures for docs/reliability.md, where TRITON_SAM_FAULTS_OUT names a folder for them.

    Args:
        name: of the file.
        fault: the row's first column: what was done.
        figures: what was measured -> (value, bar); the bar is text, "" where there is none.
    """
    folder = os.environ.get("TRITON_SAM_FAULTS_OUT")
    if folder:
        rows = [{"what": what, "value": value, "bar": bar} for what, (value, bar) in figures.items()]
        path = Path(folder) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"fault": fault, "commit": _commit(), "figures": rows}, indent=1) + "\n")


@functools.cache
def _commit() -> str:
    """What was measured: a commit, with a ``+`` where files differ from it; "" outside a clone."""
    words = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
