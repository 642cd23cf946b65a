"""Finds the worker processes of a server's models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

#: The module that a worker process runs; the next word of its command line is JSON that names its server.
WORKER_MODULE = "triton_sam.backend.workers.process"
#: The last word of a spare's command line: a process that may become a worker.
SPARE = "spare"
#: A spare that has become one has this name and the index of its device (``/proc/PID/comm``: 15 characters at most).
_NAME = "sam-worker-"


def name_worker(index: int) -> None:
    """Makes this process, a spare until now, known as the worker of a device."""
    Path("/proc/self/comm").write_text(f"{_NAME}{index}")


def worker_devices(server: int) -> Iterator[tuple[int, int]]:
    """(pid, index of its device) of the workers of a tritonserver process, which may have ended. Spares are none."""
    for pid, words in _found(server):
        with contextlib.suppress(OSError, ValueError, LookupError):
            if SPARE not in words:
                yield pid, int(json.loads(words[0])["index"])
            else:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith(_NAME):
                    yield pid, int(name.removeprefix(_NAME))


def worker_pids(server: int) -> Iterator[int]:
    """The pids of the workers of a tritonserver process, which may have ended."""
    return (pid for pid, _ in worker_devices(server))


def worker_and_spare_pids(server: int) -> Iterator[int]:
    """The pids of all that must end with a tritonserver process."""
    return (pid for pid, _ in _found(server))


def _found(server: int) -> Iterator[tuple[int, list[str]]]:
    """(pid, arguments) of workers and spares."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            words = entry.read_text(errors="replace").split("\0")
            arguments = words[words.index(WORKER_MODULE) + 1 :]
            if json.loads(arguments[0])["server"] == server:
                yield int(entry.parent.name), arguments
