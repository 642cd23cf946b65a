"""Load shedding: refuses clicks before the HTTP request is built, while every slot is taken.

A refusal in the normal code path costs a quarter of a served click. Under overload such refusals would use up the event
loop's thread, and health checks and admitted requests would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.error_responses import error_response
from triton_sam.service.telemetry.access_log import log_request
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.telemetry.request_context import RequestContext, request_id_of

#: Overload comes from clicks; other requests take the normal code path.
_PATH = "/v1/segment"
#: A click is a few hundred bytes and arrives with its head. A larger body must be refused before it is complete.
_MAX_BODY_BYTES = 8 * 1024
#: These headers ask for something that only the normal code path does.
_SPECIAL_HEADERS = frozenset({b"origin", b"expect", b"upgrade", b"transfer-encoding", b"traceparent"})
_STATUS = b"HTTP/1.1 429 Too Many Requests\r\n"

HeaderList = Sequence[tuple[bytes, bytes]]


class LoadShedder:
    """Decides from a request's head whether it is refused, and writes the response. Belongs to the event loop."""

    def __init__(self, capacity: ServiceCapacity, metrics: ServiceMetrics) -> None:
        self._capacity = capacity
        self._metrics = metrics
        response = error_response(capacity.refusal())
        self._head = _STATUS + _lines(response.raw_headers)
        self._body = bytes(response.body)

    def refuses(self, method: bytes, url: bytes, headers: HeaderList) -> bool:
        """Whether a request is a plain click while every slot is taken."""
        if not self._capacity.is_full or method != b"POST" or url != _PATH.encode():
            return False
        found = dict(headers)
        length = found.get(b"content-length", b"")
        return _SPECIAL_HEADERS.isdisjoint(found) and length.isdigit() and int(length) <= _MAX_BODY_BYTES

    def response(self, headers: HeaderList, default_headers: HeaderList) -> bytes:
        """The complete response, counted in the metrics and logged. The API token is not checked.

        Args:
            default_headers: those that the server adds to every response.
        """
        offered = next((value for name, value in headers if name == b"x-request-id"), b"")
        request_id = request_id_of(offered.decode("latin-1"))
        self._metrics.requests.labels(_PATH, "POST", "429").inc()
        self._metrics.seconds.labels(_PATH).observe(0.0)
        log_request(RequestContext(request_id, _PATH), "POST", 429, 0.0)
        named = _lines([*default_headers, (b"x-request-id", request_id.encode())])
        return self._head + named + b"\r\n" + self._body


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in headers)
