"""The fault suite in its two lengths, and where its figures go.

``make test`` runs the short form; ``make test-faults`` sets TRITON_SAM_FAULTS=long, holds every bar of
docs/reliability.md, and keeps what was measured.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LONG = os.environ.get("TRITON_SAM_FAULTS") == "long"


def form(short: T, long: T) -> T:
    """What the present length of the suite takes."""
    return long if LONG else short


def record(name: str, fault: str, figures: dict[str, tuple[Any, str]]) -> None:
    """Keeps figures for docs/reliability.md, where somebody asks for them.

    Args:
        name: of the file.
        fault: the row's first column: what was done.
        figures: what was measured -> (value, bar); the bar is text, "" where there is none.
    """
    folder = os.environ.get("TRITON_SAM_FAULTS_OUT")
    if folder:
        rows = [{"what": what, "value": value, "bar": bar} for what, (value, bar) in figures.items()]
        document = {"fault": fault, "form": "long" if LONG else "short", "commit": _commit(), "figures": rows}
        path = Path(folder) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")


@functools.cache
def _commit() -> str:
    """What was measured: a commit, with a ``+`` where files differ from it; "" outside a clone."""
    words = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
