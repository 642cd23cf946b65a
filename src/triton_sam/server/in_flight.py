"""How many requests a model's process is holding, readable after that process was killed.

Triton never answers a request whose Python process died with it. The process therefore counts what it holds in a
small mapped file, and the supervisor reads the count after a death to decide between a reload and a restart. Each
process has a file of its own: while a newer version takes over, two processes of one model are alive.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

#: Set by the supervisor for the server's processes.
FLIGHT_DIR_VARIABLE = "TRITON_SAM_FLIGHT_DIR"
#: The same: a folder in which the processes of vision-language models agree about memory.
VLM_DIR_VARIABLE = "TRITON_SAM_VLM_DIR"
_COUNT = struct.Struct("<q")


class FlightCounter:
    """The writing side; counts in memory only when no folder is set."""

    def __init__(self, model: str, folder: str | None = None) -> None:
        folder = folder or os.environ.get(FLIGHT_DIR_VARIABLE)
        self._lock = threading.Lock()
        self._count = 0
        self._map: mmap.mmap | None = None
        self._path: Path | None = None
        if folder:
            self._path = flight_file(Path(folder), model, os.getpid())
            self._path.write_bytes(_COUNT.pack(0))
            with self._path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _COUNT.size)

    def add(self, amount: int) -> None:
        """Counts requests in (+) and out (-)."""
        with self._lock:
            self._count += amount
            if self._map is not None:
                _COUNT.pack_into(self._map, 0, self._count)

    def close(self) -> None:
        """Forgets the count of a process that ends in order, with nothing left to answer."""
        with self._lock:
            if self._path is not None and self._count == 0:
                self._path.unlink(missing_ok=True)


def flight_file(folder: Path, model: str, pid: int) -> Path:
    """Where a process keeps its count."""
    return folder / f"{model}.{pid}"


def requests_held(folder: Path, model: str, pid: int | None = None) -> int | None:
    """The count of one process of a model, alive or dead, or of all its processes; None where none keeps one."""
    if pid is not None:
        return _read(flight_file(folder, model, pid))
    prefix = f"{model}."
    files = [path for path in folder.glob("*") if path.name.startswith(prefix)]
    counts = [_read(path) for path in files if path.name.removeprefix(prefix).isdecimal()]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _read(path: Path) -> int | None:
    try:
        return int(_COUNT.unpack(path.read_bytes())[0])
    except (OSError, struct.error):
        return None
