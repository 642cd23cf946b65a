"""Telemetry middleware: gives every request its id, measures, traces and logs it, and handles unexpected exceptions."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import InternalError, Unavailable
from triton_sam.service.error_responses import error_response
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.access_log import log_request
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.telemetry.request_context import RequestContext, request_id_of
from triton_sam.service.telemetry.spans import NO_TRACING, Tracing

log = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_CLIENT_CLOSED_REQUEST = 499


class TelemetryMiddleware:
    """Measures, traces and logs every request; turns an unexpected exception into a 500 with the request's id."""

    def __init__(
        self, app: ASGIApp, *, metrics: ServiceMetrics, routes: Collection[str], tracing: Tracing = NO_TRACING
    ) -> None:
        """
        Args:
            routes: the paths that get their own label. A path with a parameter, ``/samples/{name}``, is the label of
                every path of that form; its last parameter may have slashes in it.
        """
        self._app = app
        self._metrics = metrics
        self._tracing = tracing
        self._routes = frozenset(route for route in routes if "{" not in route)
        self._templates = [(_pattern(route), route) for route in sorted(routes, key=len, reverse=True) if "{" in route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = RequestContext(request_id_of(headers.get("x-request-id", "")), self._label(scope["path"]))
        with request_context.use(context):
            if scope["type"] == "websocket":  # its messages are traced and counted separately
                await self._app(scope, receive, send)
            else:
                await self._request(context, headers, scope, receive, send)

    async def _request(
        self, context: RequestContext, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        status = 0
        method = scope["method"] if scope["method"] in _METHODS else "other"

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", context.request_id.encode())]}
            await send(message)

        started = time.perf_counter()
        context.span = self._tracing.request(method, context.route, headers, context.request_id)
        self._metrics.in_progress.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.debug("the client of %s disconnected while sending", context.route)
        except asyncio.CancelledError:  # the shutdown does that, after its grace period
            if status:  # part of the response is sent: only closing the connection can report the failure
                log.warning("the shutdown cut off a response of %s", context.route)
                return
            await error_response(Unavailable("the server is shutting down: try again in a moment"))(
                scope, receive, send_with_id
            )
        except Exception:
            log.exception("unexpected exception in request %s to %s", context.request_id, context.route)
            if status:
                raise  # as above: uvicorn closes the connection
            failure = InternalError(
                f"the service failed on this request: see its log for request id {context.request_id}"
            )
            await error_response(failure)(scope, receive, send_with_id)
        finally:
            spent = time.perf_counter() - started
            self._metrics.in_progress.dec()
            self._metrics.seconds.labels(context.route).observe(spent)
            self._metrics.requests.labels(context.route, method, str(status or _CLIENT_CLOSED_REQUEST)).inc()
            context.span.end_request(status or _CLIENT_CLOSED_REQUEST, context.caller)
            log_request(context, method, status or _CLIENT_CLOSED_REQUEST, spent)

    def _label(self, path: str) -> str:
        if path in self._routes:
            return path
        return next((route for pattern, route in self._templates if pattern.fullmatch(path)), "other")


def _pattern(route: str) -> re.Pattern[str]:
    """Matches the paths of a route with parameters."""
    *parts, last = re.split(r"\{[^}]*\}", route)
    ending = ".*" if not last else re.escape(last)
    found = "[^/]+".join(re.escape(part) for part in parts)
    return re.compile(found + (ending if not last else "[^/]+" + ending), re.DOTALL)
