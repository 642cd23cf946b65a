"""Counters and memory of the server under test."""

from __future__ import annotations

import os

from triton_sam.server import metrics_reader
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
