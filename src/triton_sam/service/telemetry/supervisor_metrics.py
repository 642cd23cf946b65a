"""The supervisor's status as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class SupervisorCollector(Collector):
    """Reads the status at each scrape, so that no metric is older than ``/health``."""

    def __init__(self, status: Callable[[], Mapping[str, object]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        ready = float(status.get("state") == "ready")
        yield GaugeMetricFamily("triton_sam_supervisor_ready", "1 while masks are served, 0 otherwise", ready)
        missing = status.get("missing", ())
        count = float(len(missing)) if isinstance(missing, Sized) else 0.0
        yield GaugeMetricFamily("triton_sam_supervisor_missing", "Models that failed to load", count)
        for name, text in (("restarts", "Restarts of Triton"), ("reloads", "Reloads of a model")):
            # An upstream without a supervisor, as in some tests, counts nothing.
            yield CounterMetricFamily(f"triton_sam_supervisor_{name}", text, float(str(status.get(name, 0))))
