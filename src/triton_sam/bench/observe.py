"""What a running server says about itself, and what the machine says about its processes."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from pathlib import Path

from triton_sam.serving import RunningServer

#: Six times as long as a model keeps them to itself: on a busy machine it is late.
_SETTLE_SECONDS = 0.3
_LINE = re.compile(r"^triton_sam_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def counters(running: RunningServer, model: str) -> dict[str, float]:
    """A model's own figures, without their prefix: ``decodes_total``, ``cancelled_total``, ...

    A model tells them a moment later than it answers, so they are read until nothing changes any more.
    """
    figures = counters_so_far(running, model)
    while True:
        time.sleep(_SETTLE_SECONDS)
        again = counters_so_far(running, model)
        if again == figures:
            return again
        figures = again


def counters_so_far(running: RunningServer, model: str) -> dict[str, float]:
    """The same without waiting for what is still to be told."""
    with urllib.request.urlopen(running.urls["metrics"], timeout=30) as response:
        page = response.read().decode()
    return {name: float(value) for name, labels, value in _LINE.findall(page) if f'model="{model}"' in labels}


def resident_bytes(pid: int) -> int:
    """Memory of a process without what it shares with others: model files are mapped, and answers pass through
    shared memory, whose pages count for everybody who has touched them."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def server_bytes(running: RunningServer) -> int:
    """Memory of tritonserver and its models' processes."""
    process = running.supervisor.process
    return sum(resident_bytes(pid) for pid in (process.process.pid, *process.model_pids))


def own_bytes() -> int:
    """Memory of this process."""
    return resident_bytes(os.getpid())
