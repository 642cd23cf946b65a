"""Finds the worker processes of a server's models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

#: The module that a worker process runs; the next word of its command line is JSON that names its server.
WORKER_MODULE = "triton_sam.backend.workers.process"


def worker_pids(server: int) -> Iterator[int]:
    """The pids of the workers of a tritonserver process, which may have ended."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, IndexError, LookupError, TypeError):
            words = entry.read_text(errors="replace").split("\0")
            if WORKER_MODULE in words and json.loads(words[words.index(WORKER_MODULE) + 1])["server"] == server:
                yield int(entry.parent.name)
