"""The service's Prometheus metrics: every counter, gauge and histogram is defined here."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: From a click on a GPU to an encode on a laptop, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class ServiceMetrics:
    """The metrics of one application, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self.in_progress = Gauge("triton_sam_service_in_progress", "Requests in progress", registry=self.registry)
        self.body_bytes = Gauge(
            "triton_sam_service_body_bytes",
            "Bytes of request bodies in memory, without small ones",
            registry=self.registry,
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
        self.websockets = Gauge("triton_sam_service_websockets", "Open hover WebSockets", registry=self.registry)
