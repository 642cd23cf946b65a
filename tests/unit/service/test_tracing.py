"""Spans of requests: an exporter that keeps them, and a receiver that gets them over the wire."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.traces import collecting
from tests.unit.service.helpers import CLICK, Fake, mask_result
from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call, text_tensor
from triton_sam.errors import InternalError, SetupError
from triton_sam.service.app import create_app
from triton_sam.service.telemetry import tracing
from triton_sam.service.telemetry.otlp import OtelTracing
from triton_sam.service.telemetry.spans import NO_TRACING
from triton_sam.service.telemetry.tracing import check_tracing, traces_url, tracing_of
from triton_sam.serving import check_service
from triton_sam.settings import Settings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STEPS = {"queue_encode": 1.0, "image": 2.0, "encode": 30.0, "queue": 0.5, "decode": 4.0, "answer": 3.0}


def timed(call: Call) -> Outputs:
    return {"result_json": text_tensor(json.dumps(mask_result() | {"timings_ms": {**STEPS, "total": 41.0}}))}


async def _asked(fake: Fake, traced: OtelTracing, **request: Any) -> httpx.Response:
    app = create_app(fake.backend, Settings(), traced)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):
        return await client.post("/v1/segment", json=CLICK, **request)


def spans_of(fake: Fake, **request: Any) -> tuple[httpx.Response, dict[str, ReadableSpan]]:
    exporter = InMemorySpanExporter()
    answer = asyncio.run(_asked(fake, OtelTracing(SimpleSpanProcessor(exporter)), **request))
    return answer, {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_and_its_steps() -> None:
    fake = Fake()
    fake.transport.answer = timed
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "my-id"}
    answer, spans = spans_of(fake, headers=headers)
    assert answer.status_code == 200
    assert set(spans) == {"POST /v1/segment", "triton sam2", *STEPS}
    server, call = spans["POST /v1/segment"], spans["triton sam2"]
    assert server.parent is not None
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == PARENT
    assert server.attributes is not None
    assert dict(server.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/segment",
        "http.response.status_code": 200,
        "triton_sam.request_id": "my-id",
        "triton_sam.caller": "anonymous",
    }
    assert call.parent is not None
    assert call.parent.span_id == server.context.span_id
    for name, ms in STEPS.items():
        step = spans[name]
        assert step.parent is not None
        assert step.parent.span_id == call.context.span_id
        assert step.start_time is not None
        assert step.end_time is not None
        assert (step.end_time - step.start_time) / 1e6 == pytest.approx(ms, abs=1e-3)
    starts = [spans[name].start_time or 0 for name in STEPS]
    assert starts == sorted(starts)
    assert fake.transport.calls[0].request_id == "my-id"
    assert fake.transport.calls[0].headers["traceparent"] == f"00-{TRACE}-{call.context.span_id:016x}-01"


def test_what_its_caller_does_not_trace_is_not_traced_behind() -> None:
    fake = Fake()
    answer, spans = spans_of(fake, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert answer.status_code == 200
    assert spans == {}
    assert "traceparent" not in fake.transport.calls[0].headers


def test_a_failure_is_marked() -> None:
    fake = Fake()

    def fail(call: Call) -> Outputs:
        raise InternalError("decoding failed on the server (ValueError); its log says why")

    fake.transport.answer = fail
    answer, spans = spans_of(fake, headers={"X-Request-ID": "my-id"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].endswith("see its log for request id my-id")
    call, server = spans["triton sam2"], spans["POST /v1/segment"]
    assert not call.status.is_ok
    assert not server.status.is_ok
    assert call.attributes is not None
    assert call.attributes["error.type"] == "internal_error"


def test_nothing_is_imported_where_nothing_is_traced() -> None:
    program = (
        "import sys, triton_sam.service.app, triton_sam.service.telemetry.tracing as t\n"
        "from triton_sam.settings import Settings\n"
        "assert t.tracing_of(Settings(), {}) is t.NO_TRACING\n"
        "assert 'triton_sam.service.telemetry.otlp' not in sys.modules\n"
        # Not the whole of it: FastAPI takes OpenTelemetry's API in where it is installed.
        "assert 'opentelemetry.sdk' not in sys.modules and 'opentelemetry.exporter' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_when_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing_of(Settings(), {}) is NO_TRACING
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert tracing_of(Settings(), {**named, "OTEL_SDK_DISABLED": "true"}) is NO_TRACING
    for settings, environment in ((Settings(), named), (Settings(tracing=True), {})):
        found = tracing_of(settings, environment)
        assert isinstance(found, OtelTracing)
        asyncio.run(found.close())


def test_where_they_go() -> None:
    every_kind, traces = tracing.ENDPOINTS
    assert traces_url(Settings(), {}) is None
    assert traces_url(Settings(tracing=True), {}) == "http://localhost:4318/v1/traces"
    assert traces_url(Settings(), {every_kind: "http://c:4318/"}) == "http://c:4318/v1/traces"
    assert traces_url(Settings(), {every_kind: "http://c:4318", traces: "http://d/in"}) == "http://d/in"
    assert traces_url(Settings(), {every_kind: "http://c:4318", "OTEL_SDK_DISABLED": "true"}) is None


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "triton_sam.service.telemetry.otlp", None)
    with pytest.raises(SetupError, match=r"\[tracing\]"):
        tracing_of(Settings(tracing=True), {})
    assert tracing_of(Settings(), {tracing.ENDPOINTS[0]: "http://127.0.0.1:9"}) is NO_TRACING
    assert "[tracing]" in caplog.text


def test_missing_packages_are_reported_before_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_service(Settings(tracing=True))
    monkeypatch.setitem(sys.modules, "triton_sam.service.telemetry.otlp", None)
    check_service(Settings())
    check_tracing(Settings(tracing=True), {"OTEL_SDK_DISABLED": "true"})
    with pytest.raises(SetupError, match=r"\[tracing\]"):
        check_service(Settings(tracing=True))


def test_a_missing_exporter_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton_sam.service.telemetry.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SetupError, match=r"trace_exporter is not installed: .*pip install .*\[tracing\]"):
        tracing_of(Settings(tracing=True), {})


def test_over_the_wire() -> None:
    fake = Fake()
    fake.transport.answer = timed
    with collecting() as (endpoint, got):
        traced = OtelTracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        assert asyncio.run(_asked(fake, traced)).status_code == 200  # closing the service sends what is left
    assert {span.service for span in got} == {"triton-sam"}
    assert {span.name for span in got} == {"POST /v1/segment", "triton sam2", *STEPS}
