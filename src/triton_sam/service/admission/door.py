"""The cheapest refusal of clicks: while every place is taken, it is written before a request becomes one.

A click that is refused on the usual way costs a quarter of one that is served. A crowd of them takes the one thread
that serves, health and those who were let in wait for it, and refusing is all that gets done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from triton_sam.service.admission.places import Places
from triton_sam.service.faults import error_response
from triton_sam.service.telemetry import visits
from triton_sam.service.telemetry.metrics import ServiceMetrics, request_id_of
from triton_sam.service.telemetry.visits import Visit

#: Where crowds come to; everything else is worth a look.
_PATH = "/v1/segment"
#: A click is a few hundred bytes, which come with its head. Who sends more is told before he has sent it all.
_MOST_BYTES = 8 * 1024
#: Who sends one of these expects something of the answer, or of how it comes.
_SPECIAL = frozenset({b"origin", b"expect", b"upgrade", b"transfer-encoding", b"traceparent"})
_STATUS = b"HTTP/1.1 429 Too Many Requests\r\n"

HeaderList = Sequence[tuple[bytes, bytes]]


class Door:
    """Looks at a request's head before uvicorn makes anything of it. Belongs to the event loop."""

    def __init__(self, places: Places, metrics: ServiceMetrics) -> None:
        self._places = places
        self._metrics = metrics
        answer = error_response(places.refusal())
        self._head = _STATUS + _lines(answer.raw_headers)
        self._body = bytes(answer.body)

    def is_shut(self, method: bytes, url: bytes, headers: HeaderList) -> bool:
        """Whether a request is a plain click, and nobody can be let in."""
        if not self._places.all_taken or method != b"POST" or url != _PATH.encode():
            return False
        found = dict(headers)
        length = found.get(b"content-length", b"")
        return _SPECIAL.isdisjoint(found) and length.isdigit() and int(length) <= _MOST_BYTES

    def refusal(self, headers: HeaderList, default_headers: HeaderList) -> bytes:
        """The whole answer, counted and logged. Whose token it was is not looked at.

        Args:
            default_headers: those that the server gives every answer.
        """
        offered = next((value for name, value in headers if name == b"x-request-id"), b"")
        request_id = request_id_of(offered.decode("latin-1"))
        self._metrics.requests.labels(_PATH, "POST", "429").inc()
        self._metrics.seconds.labels(_PATH).observe(0.0)
        visits.log_request(Visit(request_id, _PATH), "POST", 429, 0.0)
        named = _lines([*default_headers, (b"x-request-id", request_id.encode())])
        return self._head + named + b"\r\n" + self._body


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in headers)
