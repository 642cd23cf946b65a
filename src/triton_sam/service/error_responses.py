"""Error responses as JSON: ``{"error": {"code": "invalid_input", "message": "one sentence", ...}}``.

With ``type`` and ``param`` this is the format that OpenAI's clients read.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from triton_sam.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
    spelled,
)
from triton_sam.logs import REQUEST_ID

log = logging.getLogger(__name__)

_MAX_MESSAGE = 500
_FAILED = "the model server failed on this request: see its log"

HEADERS: dict[int, dict[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    499: {"Cancelled-By-Client": "1"},
    503: {"Retry-After": "2"},
}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def code_of(error: TritonSamError) -> str:
    """``InvalidInput`` -> ``invalid_input``."""
    return spelled(type(error), "_")


def _type_of(error: TritonSamError) -> str:
    """OpenAI's error type."""
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return _TYPES.get(error.http_status, "invalid_request_error")


def error_document(error: TritonSamError) -> dict[str, Any]:
    """The JSON document of an error."""
    message = str(error)
    if len(message) > _MAX_MESSAGE:  # it may quote megabytes of the request
        message = f"{message[: _MAX_MESSAGE - 3]}..."
    return {"error": {"code": code_of(error), "message": message, "type": _type_of(error), "param": error.field}}


def error_response(error: TritonSamError, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP response for an error that contains no internals."""
    retry = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    return Response(
        json.dumps(error_document(error)),
        status_code=error.http_status,
        headers={**HEADERS.get(error.http_status, {}), **retry, **(headers or {})},
        media_type="application/json",
    )


def public_triton_error(error: TritonSamError, address: str | None = None) -> TritonSamError:
    """An error from Triton without internals such as addresses and paths; the original goes to the log.

    Args:
        address: Triton's ``host:port``, which messages of ``client.wire`` contain; None if they cannot.
    """
    if type(error) is InternalError and str(error).startswith(_FAILED):  # already converted
        return error
    if isinstance(error, ServerUnreachable):
        public: TritonSamError = Unavailable("the model server cannot be reached: try again in a moment")
    elif isinstance(error, DeadlineExceeded):
        public = DeadlineExceeded("the model server did not answer within the time limit: try again, or send less")
    elif type(error) is Unavailable and address is not None and address in str(error):
        public = Unavailable("the model is loading: try again in a moment")
    elif error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR:
        request_id = REQUEST_ID.get()
        public = InternalError(_FAILED if request_id is None else f"{_FAILED} for request id {request_id}")
    else:
        return error
    log.warning("answered with %r because of: %s", code_of(public), error)
    return public


def public_error(error: TritonSamError) -> TritonSamError:
    """As :func:`public_triton_error`, for an error that may be converted already or may be the service's own."""
    has_internals = isinstance(error, ServerUnreachable) or error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR
    return public_triton_error(error) if has_internals else error


def install(app: FastAPI) -> None:
    """Installs the exception handlers; ``telemetry.middleware`` handles unexpected exceptions."""
    app.add_exception_handler(TritonSamError, _from_triton_sam)
    app.add_exception_handler(HTTPException, _from_framework)
    app.add_exception_handler(RequestValidationError, _from_validation)


async def _from_triton_sam(request: Request, error: Exception) -> Response:
    assert isinstance(error, TritonSamError)
    return error_response(public_error(error))


async def _from_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        return error_response(NotFound(f"there is no route {path!r}: see /docs for the routes"))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        return error_response(
            MethodNotAllowed(f"{request.method} is not allowed at {path!r}: use {allowed}"), error.headers
        )
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return error_response(InvalidInput(f"the request cannot be read: {error.detail}"))
    return error_response(InternalError("the service failed on this request: see its log"))


async def _from_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    return error_response(InvalidInput(f"{field} is invalid ({first['msg']}): see /docs for the allowed values"))
