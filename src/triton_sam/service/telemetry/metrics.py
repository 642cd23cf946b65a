"""The service's Prometheus metrics: every counter, gauge and histogram is defined here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

#: From a click on a GPU to an encode on a laptop, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


def share_values(folder: Path, process: int) -> None:
    """Keeps the values of this process's metrics in files, where other processes add them up.

    Call it before any metric is created. A process that replaces another of the same number continues its counters.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(process_identifier=lambda: process)  # type: ignore[no-untyped-call]


def forget_gauges(folder: Path, process: int) -> None:
    """Removes the gauges of a process that has ended; its counters stay."""
    mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]


class ServiceMetrics:
    """The metrics of one application, with a registry of their own."""

    def __init__(self, folder: Path | None = None) -> None:
        """
        Args:
            folder: of :func:`share_values`; None for a service of one process.
        """
        self.is_shared = folder is not None
        self.registry = CollectorRegistry()
        self._exposed = self.registry if folder is None else CollectorRegistry()
        if folder is not None:
            MultiProcessCollector(self._exposed, str(folder))  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "triton_sam_service_requests_total",
            "Requests answered",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "triton_sam_service_seconds",
            "Time from a request's head to the end of its response",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.in_progress = Gauge(
            "triton_sam_service_in_progress",
            "Requests in progress",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.hovers = Counter(
            "triton_sam_service_hovers_total", "Hover messages by outcome", ["outcome"], registry=self.registry
        )
        self.tokens = Counter(
            "triton_sam_service_tokens_total",
            "Prompt and completion tokens of complete answers",
            ["model", "kind"],
            registry=self.registry,
        )
        self.callers = Counter(
            "triton_sam_service_callers_total",
            "Requests and hover messages by the name of their API token, and whether the rate limit allowed them",
            ["caller", "kind", "outcome"],
            registry=self.registry,
        )
        self.websockets = Gauge(
            "triton_sam_service_websockets",
            "Open hover WebSockets",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._add_videos()

    def _add_videos(self) -> None:
        self.videos, self.video_frames, self.video_bytes = (
            Gauge(name, described, registry=self.registry, multiprocess_mode="livesum")
            for name, described in (
                ("triton_sam_service_videos", "Videos that are open in the service"),
                ("triton_sam_service_video_frames", "Frames of these videos"),
                ("triton_sam_service_video_bytes", "Bytes of these videos on the disk"),
            )
        )
        self.video_results = Counter(
            "triton_sam_service_video_results_total", "Frames of videos that were tracked", registry=self.registry
        )

    def register(self, collector: Collector) -> None:
        """Adds what is not counted here. It must speak for all processes."""
        self._exposed.register(collector)

    def text(self) -> bytes:
        """For Prometheus: of all processes. Reads files if there are several, so run it on a thread then."""
        return generate_latest(self._exposed)


class BodyBytesCollector(Collector):
    """The bytes of request bodies, read at each scrape."""

    def __init__(self, bytes_held: Callable[[], int]) -> None:
        self._bytes_held = bytes_held

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "triton_sam_service_body_bytes",
            "Bytes of request bodies in memory, without small ones",
            float(self._bytes_held()),
        )
