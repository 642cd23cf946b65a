"""Counters and memory of the server under test."""

from __future__ import annotations

import os
import re
import urllib.request

from triton_sam.server import metrics_reader
from triton_sam.server.host import process_alive
from triton_sam.server.worker_processes import worker_devices
from triton_sam.serving import RunningServer


def counters(running: RunningServer, model: str) -> dict[str, float]:
    """A model's counters, read until they no longer change."""
    return metrics_reader.settled_counters(running.urls["metrics"], model)


def counters_so_far(running: RunningServer, model: str) -> dict[str, float]:
    """A model's counters, read at once."""
    return metrics_reader.model_counters(running.urls["metrics"], model)


def server_bytes(running: RunningServer) -> int:
    """Memory of tritonserver and of its models' processes."""
    return metrics_reader.server_bytes(running.supervisor.process)


def own_bytes() -> int:
    """Memory of this process."""
    return metrics_reader.resident_bytes(os.getpid())


def workers_of(running: RunningServer) -> dict[int, int]:
    """pid of each worker process -> index of its device. A worker that has lost the race for a device ends soon."""
    server = running.supervisor.process.process.pid
    return {pid: index for pid, index in worker_devices(server) if process_alive(pid)}


def work_by_device(running: RunningServer, kind: str) -> dict[str, float]:
    """Device (``0:cpu``) -> its ``encodes`` or ``decodes`` so far."""
    with urllib.request.urlopen(running.urls["metrics"], timeout=30) as response:
        page = response.read().decode()
    lines = re.findall(rf'triton_sam_device_{kind}_total\{{[^}}]*device="([^"]+)"[^}}]*\}} (\S+)', page)
    return {device: float(value) for device, value in lines}
