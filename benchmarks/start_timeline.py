"""When each part of a start was done, by the server's log in JSON (``TRITON_SAM_LOG_FORMAT=json``).

usage: python -m benchmarks.start_timeline LOG

prints seconds since the first line, and the line.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path


def timeline(log: Path, since: float, most: int = 40) -> list[tuple[float, str]]:
    """(seconds, line) of what our processes have logged after a moment.

    Args:
        since: time.time() of that moment.
        most: number of lines.
    """
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if not line.startswith('{"time"'):  # Triton's own
            continue
        told = json.loads(line)
        seconds = datetime.fromisoformat(told["time"].replace("Z", "+00:00")).timestamp() - since
        if seconds >= 0:
            found.append((round(seconds, 2), str(told["message"])))
    return sorted(found)[:most]


def main(arguments: list[str]) -> None:
    """The command line."""
    lines = timeline(Path(arguments[0]), 0.0, sys.maxsize)
    for seconds, message in lines:
        sys.stdout.write(f"{seconds - lines[0][0]:8.2f}  {message}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
