"""One request on its way through the service: what its log line, its trace and its call of Triton say of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from triton_sam.logs import REQUEST_ID, REQUESTS_LOG
from triton_sam.service.telemetry.spans import NO_SPAN, Span
from triton_sam.service.tokens import ANONYMOUS

_requests = logging.getLogger(REQUESTS_LOG)
#: Enough to find lines about one image; the whole key would let every reader of the log ask for its masks.
_KEY_CHARACTERS = 16


@dataclass(slots=True)
class Visit:
    """
    Attributes:
        route: as metrics name it.
        caller: the name of a token.
        image: the beginning of its image's key, where that is known.
    """

    request_id: str
    route: str
    caller: str = ANONYMOUS
    image: str = ""
    span: Span = NO_SPAN


_VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)


def current() -> Visit | None:
    """That of this task, or of the one that began it."""
    return _VISIT.get()


@contextlib.contextmanager
def entered(visit: Visit) -> Iterator[None]:
    """What is done in the block, and begun in it, belongs to this visit."""
    visit_before, id_before = _VISIT.set(visit), REQUEST_ID.set(visit.request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(id_before)
        _VISIT.reset(visit_before)


def name_caller(name: str) -> None:
    """Notes whose token it was."""
    visit = _VISIT.get()
    if visit is not None:
        visit.caller = name


def name_image(key: str) -> None:
    """Notes which image it is about."""
    visit = _VISIT.get()
    if visit is not None:
        visit.image = key[:_KEY_CHARACTERS]


def log_request(visit: Visit, method: str, status: int, seconds: float) -> None:
    """The line of a request that is over. Nothing of its body stands there, nor its query, nor its token."""
    if _requests.isEnabledFor(logging.INFO):
        _log(visit, method, seconds, status=status)


def log_socket(visit: Visit, messages: int, seconds: float) -> None:
    """The line of a socket that is closed; a line for each message would be dozens a second."""
    if _requests.isEnabledFor(logging.INFO):
        _log(visit, "WS", seconds, messages=messages)


def _log(visit: Visit, method: str, seconds: float, **numbers: int) -> None:
    ms = round(seconds * 1e3, 2)
    told = ", ".join(f"{name} {number}" for name, number in numbers.items())
    image = f", image {visit.image}" if visit.image else ""
    fields = {"method": method, "route": visit.route, **numbers, "ms": ms, "caller": visit.caller}
    fields["image"] = visit.image or None
    _requests.info(
        "%s %s: %s, %.2f ms, by %s%s", method, visit.route, told, ms, visit.caller, image, extra={"fields": fields}
    )
