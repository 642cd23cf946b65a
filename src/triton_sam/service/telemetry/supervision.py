"""What the supervisor knows, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class SupervisorFigures(Collector):
    """Reads the status at each scrape, so that no figure can be older than ``/health``."""

    def __init__(self, status: Callable[[], Mapping[str, object]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        known = self._status()
        ready = float(known.get("state") == "ready")
        yield GaugeMetricFamily("triton_sam_supervisor_ready", "1 while masks are served, 0 otherwise", ready)
        missing = known.get("missing", ())
        count = float(len(missing)) if isinstance(missing, Sized) else 0.0
        yield GaugeMetricFamily("triton_sam_supervisor_missing", "Models that did not load while others serve", count)
        for name, text in (("restarts", "Times that Triton was started again"), ("reloads", "Times that a model was")):
            # A backend that nobody supervises, as in some tests, counts nothing.
            yield CounterMetricFamily(f"triton_sam_supervisor_{name}", text, float(str(known.get(name, 0))))
