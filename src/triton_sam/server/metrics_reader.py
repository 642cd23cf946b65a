"""Readings of a running server: counters of its models, and memory of its processes."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

from triton_sam.server.process import TritonProcess
from triton_sam.server.worker_processes import worker_pids

#: Six times the interval at which a model publishes its counters, because a busy machine is late.
_SETTLE_SECONDS = 0.3
_LINE = re.compile(r"^triton_sam_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def model_counters(metrics_url: str, model: str) -> dict[str, float]:
    """A model's own counters without their prefix: ``decodes_total``, ``cancelled_total``, ...

    They are read at once, and may lag behind the latest responses: see :func:`settled_counters`.
    """
    with urllib.request.urlopen(metrics_url, timeout=30) as response:
        page = response.read().decode()
    return {name: float(value) for name, labels, value in _LINE.findall(page) if f'model="{model}"' in labels}


def settled_counters(metrics_url: str, model: str) -> dict[str, float]:
    """The same, read until they no longer change: a model publishes its counters shortly after it responds."""
    counters = model_counters(metrics_url, model)
    while True:
        time.sleep(_SETTLE_SECONDS)
        again = model_counters(metrics_url, model)
        if again == counters:
            return again
        counters = again


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process.

    Mapped model files and shared memory are left out: their pages count for every process that has touched them.
    """
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def server_bytes(server: TritonProcess) -> int:
    """Memory of tritonserver, of its models' processes and of their workers."""
    server_pid = server.process.pid
    return sum(resident_bytes(pid) for pid in (server_pid, *server.model_pids, *worker_pids(server_pid)))
