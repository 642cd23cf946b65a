"""The access log: one line for each finished request and each closed WebSocket."""

from __future__ import annotations

import logging

from triton_sam.logs import REQUESTS_LOG
from triton_sam.service.telemetry.request_context import RequestContext

_requests = logging.getLogger(REQUESTS_LOG)


def log_request(context: RequestContext, method: str, status: int, seconds: float) -> None:
    """Logs a finished request, without its body, its query string or its token."""
    if _requests.isEnabledFor(logging.INFO):
        _log(context, method, seconds, status=status)


def log_websocket(context: RequestContext, messages: int, seconds: float) -> None:
    """Logs a closed WebSocket. One line in all: a line for each message would be dozens a second."""
    if _requests.isEnabledFor(logging.INFO):
        _log(context, "WS", seconds, messages=messages)


def _log(context: RequestContext, method: str, seconds: float, **numbers: int) -> None:
    ms = round(seconds * 1e3, 2)
    result = ", ".join(f"{name} {number}" for name, number in numbers.items())
    image = f", image {context.image}" if context.image else ""
    fields = {"method": method, "route": context.route, **numbers, "ms": ms, "caller": context.caller}
    fields["image"] = context.image or None
    _requests.info(
        "%s %s: %s, %.2f ms, by %s%s",
        method,
        context.route,
        result,
        ms,
        context.caller,
        image,
        extra={"fields": fields},
    )
