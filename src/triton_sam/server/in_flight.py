"""The number of requests that a model's process holds, readable after that process was killed.

Triton never answers a request whose Python process died. Each process therefore keeps its count in a small mapped file,
and the supervisor reads it after a death to choose between a reload and a restart. Each process has its own file: while
a newer version takes over, two processes of one model are alive.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

#: Set by the supervisor for the server's processes: the folder of the counts.
IN_FLIGHT_DIR_VARIABLE = "TRITON_SAM_FLIGHT_DIR"
#: Likewise: a folder in which the processes of vision-language models negotiate memory.
VLM_DIR_VARIABLE = "TRITON_SAM_VLM_DIR"
_COUNT = struct.Struct("<q")


class InFlightCounter:
    """Counts the requests of this process; in memory only if no folder is set."""

    def __init__(self, model: str, folder: str | None = None) -> None:
        folder = folder or os.environ.get(IN_FLIGHT_DIR_VARIABLE)
        self._lock = threading.Lock()
        self._count = 0
        self._map: mmap.mmap | None = None
        self._path: Path | None = None
        if folder:
            self._path = counter_file(Path(folder), model, os.getpid())
            self._path.write_bytes(_COUNT.pack(0))
            with self._path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _COUNT.size)

    def add(self, amount: int) -> None:
        """Counts requests that arrive (+) and that are answered (-)."""
        with self._lock:
            self._count += amount
            if self._map is not None:
                _COUNT.pack_into(self._map, 0, self._count)

    def close(self) -> None:
        """Removes the file if nothing is left to answer."""
        with self._lock:
            if self._path is not None and self._count == 0:
                self._path.unlink(missing_ok=True)


def counter_file(folder: Path, model: str, pid: int) -> Path:
    """The file in which a process keeps its count."""
    return folder / f"{model}.{pid}"


def requests_in_flight(folder: Path, model: str, pid: int | None = None) -> int | None:
    """The count of one process of a model, alive or dead, or the sum over its processes; None if there is no file."""
    if pid is not None:
        return _read(counter_file(folder, model, pid))
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
