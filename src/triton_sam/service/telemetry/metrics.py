"""Request ids, what Prometheus counts, and the answer to what nobody expected."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import InternalError, Unavailable
from triton_sam.service.faults import error_response
from triton_sam.service.telemetry import visits
from triton_sam.service.telemetry.spans import NO_TRACING, Tracing
from triton_sam.service.telemetry.visits import Visit

log = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
#: From a click on a GPU to an encode on a laptop, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_GONE = 499


class ServiceMetrics:
    """What one application counts."""

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
            "Time from a request's head to the end of its answer",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.in_progress = Gauge(
            "triton_sam_service_in_progress", "Requests being worked on now", registry=self.registry
        )
        self.body_bytes = Gauge(
            "triton_sam_service_body_bytes",
            "Bytes of requests' bodies held now, small ones aside",
            registry=self.registry,
        )
        self.hovers = Counter(
            "triton_sam_service_hovers_total", "Hover messages by their end", ["outcome"], registry=self.registry
        )
        self.tokens = Counter(
            "triton_sam_service_tokens_total",
            "Tokens of questions and of answers that were complete",
            ["model", "kind"],
            registry=self.registry,
        )
        self.callers = Counter(
            "triton_sam_service_callers_total",
            "Requests and hover messages by the name of their token, and whether its rate allowed them",
            ["caller", "kind", "outcome"],
            registry=self.registry,
        )
        self.websockets = Gauge("triton_sam_service_websockets", "Hover sockets open now", registry=self.registry)


class Telemetry:
    """Names, counts, times and traces every request; an exception that comes so far becomes a 500 with its id."""

    def __init__(
        self, app: ASGIApp, *, metrics: ServiceMetrics, routes: Collection[str], tracing: Tracing = NO_TRACING
    ) -> None:
        """
        Args:
            routes: the paths that get a label of their own. One with a parameter, ``/samples/{name}``, is the label of
                all that begins as it does.
        """
        self._app = app
        self._metrics = metrics
        self._tracing = tracing
        self._routes = frozenset(route for route in routes if "{" not in route)
        self._templates = {route.partition("{")[0]: route for route in routes if "{" in route}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = Visit(request_id_of(headers.get("x-request-id", "")), self._label(scope["path"]))
        with visits.entered(visit):
            if scope["type"] == "websocket":  # its messages are traced and counted one by one
                await self._app(scope, receive, send)
            else:
                await self._request(visit, headers, scope, receive, send)

    async def _request(self, visit: Visit, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0
        method = scope["method"] if scope["method"] in _METHODS else "other"

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", visit.request_id.encode())]}
            await send(message)

        started = time.perf_counter()
        visit.span = self._tracing.request(method, visit.route, headers, visit.request_id)
        self._metrics.in_progress.inc()
        try:
            await self._app(scope, receive, named)
        except ClientDisconnect:
            log.debug("the caller of %s hung up while sending", visit.route)
        except asyncio.CancelledError:  # only a stop does that, to whom it has waited for long enough
            if status:  # half an answer is out: only a lost connection can tell
                log.warning("the stop of the server cut off an answer of %s", visit.route)
                return
            await error_response(Unavailable("the server is stopping and could not wait: try again in a moment"))(
                scope, receive, named
            )
        except Exception:
            log.exception("request %s to %s failed in a way that nobody expected", visit.request_id, visit.route)
            if status:
                raise  # as above, and uvicorn closes the connection
            failure = InternalError(
                f"the service failed on this request: its log has the reason under {visit.request_id}"
            )
            await error_response(failure)(scope, receive, named)
        finally:
            spent = time.perf_counter() - started
            self._metrics.in_progress.dec()
            self._metrics.seconds.labels(visit.route).observe(spent)
            self._metrics.requests.labels(visit.route, method, str(status or _GONE)).inc()
            visit.span.end_request(status or _GONE, visit.caller)
            visits.log_request(visit, method, status or _GONE, spent)

    def _label(self, path: str) -> str:
        if path in self._routes:
            return path
        return next((route for begin, route in self._templates.items() if path.startswith(begin)), "other")


def request_id_of(offered: str) -> str:
    """The caller's own, where it is one that can stand in a log."""
    return offered if _SANE_ID.fullmatch(offered) else uuid.uuid4().hex
