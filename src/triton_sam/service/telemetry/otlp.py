"""OpenTelemetry traces. Only ``tracing`` imports this, and only if traces are enabled."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from triton_sam import __version__
from triton_sam.service.telemetry.spans import Span, Tracing

_CLOSE_SECONDS = 3.0
_NANOSECONDS_OF_MS = 1e6
_SERVER_ERROR = 500
#: In the order in which a segmenter runs them. They follow each other; the last step ends when the model's work ends.
_STEPS = ("queue_encode", "image", "encode", "queue", "decode")
_LAST_STEP = "answer"
_PROPAGATOR = TraceContextTextMapPropagator()


def otlp_tracing() -> Tracing:
    """Exports over HTTP to the endpoint in OpenTelemetry's environment variables."""
    exporter: SpanExporter = OTLPSpanExporter()
    return OtelTracing(BatchSpanProcessor(exporter))


class OtelTracing(Tracing):
    """Creates spans for one processor. It has its own provider, so an embedding application keeps its global one."""

    def __init__(self, processor: SpanProcessor) -> None:
        # A name in OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has priority.
        named = Resource.create().attributes.get(SERVICE_NAME, "")
        attributes = {SERVICE_VERSION: __version__}
        if str(named).startswith("unknown_service"):
            attributes[SERVICE_NAME] = "triton-sam"
        self._provider = TracerProvider(resource=Resource.create(attributes))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("triton_sam", __version__)

    def request(self, method: str, route: str, headers: Mapping[str, str], request_id: str) -> Span:
        parent = _PROPAGATOR.extract({name: headers[name] for name in ("traceparent", "tracestate") if name in headers})
        attributes = {"http.request.method": method, "http.route": route, "triton_sam.request_id": request_id}
        span = self._tracer.start_span(f"{method} {route}", context=parent, kind=SpanKind.SERVER, attributes=attributes)
        return _OtelSpan(self._tracer, span)

    async def close(self) -> None:
        # A collector that does not respond must not block the shutdown, so the thread is a daemon with a time limit.
        thread = threading.Thread(target=self._provider.shutdown, name="flush-traces", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, _CLOSE_SECONDS)


class _OtelSpan(Span):
    __slots__ = ("_span", "_started", "_tracer")

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        self._tracer = tracer
        self._span = span
        self._started = time.time_ns()

    def call(self, model: str) -> Span:
        span = self._tracer.start_span(
            f"triton {model}",
            context=set_span_in_context(self._span),
            kind=SpanKind.CLIENT,
            attributes={"triton_sam.model": model},
        )
        return _OtelSpan(self._tracer, span)

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        # Triton traces every request that comes with an id, sampled or not.
        if self._span.get_span_context().trace_flags.sampled:
            _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        return carrier

    def end_call(self, result_json: bytes | None = None, failure: str | None = None) -> None:
        ended = time.time_ns()
        if failure is not None:
            self._span.set_attribute("error.type", failure)
            self._span.set_status(Status(StatusCode.ERROR, failure))
        if result_json is not None and self._span.is_recording():
            self._add_steps(_timings(result_json), ended)
        self._span.end(ended)

    def end_request(self, status: int, caller: str) -> None:
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("triton_sam.caller", caller)
        if status >= _SERVER_ERROR:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def _add_steps(self, timings: Mapping[str, float], ended: int) -> None:
        """Adds a child span for each step.

        The model reports durations only, because its process has a clock of its own. The start is an estimate: the time
        of the round trip is split evenly before and after the model's work.
        """
        total = timings.get("total", 0.0) * _NANOSECONDS_OF_MS
        begin = self._started + max(0.0, (ended - self._started - total) / 2)
        over = begin + total
        parent = set_span_in_context(self._span)
        for name in _STEPS:
            if name in timings:
                begin = self._add_step(name, parent, begin, timings[name])
        if _LAST_STEP in timings:
            spent = timings[_LAST_STEP]
            self._add_step(_LAST_STEP, parent, max(begin, over - spent * _NANOSECONDS_OF_MS), spent)

    def _add_step(self, name: str, parent: Any, begin: float, ms: float) -> float:
        """Adds one step; returns the time of its end."""
        end = begin + ms * _NANOSECONDS_OF_MS
        self._tracer.start_span(name, context=parent, start_time=int(begin)).end(int(end))
        return end


def _timings(result_json: bytes) -> dict[str, float]:
    try:
        found = json.loads(result_json)["timings_ms"]
        return {name: max(0.0, float(ms)) for name, ms in found.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
