"""The context of the current request: its id, route, caller, image and trace span."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from triton_sam.logs import REQUEST_ID
from triton_sam.service.api_tokens import ANONYMOUS
from triton_sam.service.telemetry.spans import NO_SPAN, Span

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: Enough to find log lines about one image; with the whole key, every reader of the log could request its masks.
_KEY_CHARACTERS = 16


@dataclass(slots=True)
class RequestContext:
    """What the access log, the trace and the call to Triton need to know about a request.

    Attributes:
        route: as in the metrics' label.
        caller: the name of the API token.
        image: the beginning of the image's key, if known.
    """

    request_id: str
    route: str
    caller: str = ANONYMOUS
    image: str = ""
    span: Span = NO_SPAN


_CONTEXT: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)


def current() -> RequestContext | None:
    """The context of this task, or of the task that started it."""
    return _CONTEXT.get()


@contextlib.contextmanager
def use(context: RequestContext) -> Iterator[None]:
    """Makes this the current context in the block and in the tasks that it starts."""
    context_token, id_token = _CONTEXT.set(context), REQUEST_ID.set(context.request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(id_token)
        _CONTEXT.reset(context_token)


def set_caller(name: str) -> None:
    """Records the name of the caller's API token."""
    context = _CONTEXT.get()
    if context is not None:
        context.caller = name


def set_image(key: str) -> None:
    """Records which image the request is about."""
    context = _CONTEXT.get()
    if context is not None:
        context.image = key[:_KEY_CHARACTERS]


def request_id_of(offered: str) -> str:
    """The client's own request id if it is safe to log, otherwise a new one."""
    return offered if _SAFE_ID.fullmatch(offered) else uuid.uuid4().hex
