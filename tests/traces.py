"""An OTLP receiver, for tests of the traces that are sent."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class SeenSpan:
    """A received span; ids in hexadecimal digits, times in nanoseconds since 1970."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]


@contextlib.contextmanager
def collecting() -> Iterator[tuple[str, list[SeenSpan]]]:
    """(URL of a receiver of OTLP over HTTP, the spans received so far)."""
    got: list[SeenSpan] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.extend(_spans(json.loads(body) if self.headers["Content-Type"] == "application/json" else _plain(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
        finally:
            server.shutdown()
            thread.join()


def _plain(body: bytes) -> dict[str, Any]:
    """Protobuf bytes -> OTLP's JSON form, in which ids are hexadecimal and not protobuf's base64."""

    def digits(span: dict[str, Any]) -> dict[str, Any]:
        ids = {name: span.get(name, "") for name in ("traceId", "spanId", "parentSpanId")}
        return {**span, **{name: base64.b64decode(value).hex() for name, value in ids.items()}}

    document: dict[str, Any] = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for part in document["resourceSpans"]:
        for scope in part["scopeSpans"]:
            scope["spans"] = [digits(span) for span in scope["spans"]]
    return document


def _spans(document: dict[str, Any]) -> Iterator[SeenSpan]:
    for part in document["resourceSpans"]:
        service = str(_attributes(part["resource"])["service.name"])
        for span in (span for scope in part["scopeSpans"] for span in scope["spans"]):
            yield SeenSpan(
                service,
                span["name"],
                span["traceId"],
                span["spanId"],
                span.get("parentSpanId", ""),
                int(span["startTimeUnixNano"]),
                int(span["endTimeUnixNano"]),
                _attributes(span),
            )


def _attributes(carrier: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in carrier.get("attributes", [])}
