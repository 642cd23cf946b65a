"""How many requests a model's process is holding, readable after that process was killed.

Triton never answers a request whose Python process died with it. The process therefore counts what it holds in a
small mapped file, and the supervisor reads the count after a death to decide between a reload and a restart.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

#: Set by the supervisor for the server's processes.
FLIGHT_DIR_VARIABLE = "TRITON_SAM_FLIGHT_DIR"
_COUNT = struct.Struct("<q")


class FlightCounter:
    """The writing side; counts in memory only when no folder is set."""

    def __init__(self, model: str, folder: str | None = None) -> None:
        folder = folder or os.environ.get(FLIGHT_DIR_VARIABLE)
        self._lock = threading.Lock()
        self._count = 0
        self._map: mmap.mmap | None = None
        if folder:
            path = Path(folder) / model
            path.write_bytes(_COUNT.pack(0))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _COUNT.size)

    def add(self, amount: int) -> None:
        """Counts requests in (+) and out (-)."""
        with self._lock:
            self._count += amount
            if self._map is not None:
                _COUNT.pack_into(self._map, 0, self._count)


def requests_held(folder: Path, model: str) -> int | None:
    """The count of a process, alive or dead; None where it never kept one."""
    try:
        data = (folder / model).read_bytes()
        return int(_COUNT.unpack(data)[0])
    except (OSError, struct.error):
        return None
