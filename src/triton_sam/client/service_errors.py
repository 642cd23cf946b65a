"""Error responses of the triton-sam service as this package's exceptions. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    ImageExpired,
    InternalError,
    InvalidInput,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthorised,
    NotFound,
    QueueFull,
    RateLimited,
    RequestTimeout,
    TooLarge,
    TritonSamError,
    Unavailable,
    Unsupported,
    from_status,
    spelled,
)

_BY_CODE: Mapping[str, type[TritonSamError]] = {
    spelled(cls, "_"): cls
    for cls in (
        Cancelled,
        DeadlineExceeded,
        Forbidden,
        ImageExpired,
        InternalError,
        InvalidInput,
        MethodNotAllowed,
        NotAuthorised,
        NotFound,
        QueueFull,
        RateLimited,
        RequestTimeout,
        TooLarge,
        Unavailable,
        Unsupported,
    )
} | {spelled(ModelNotFound, "_"): NotFound}  # Triton makes no difference between models
_MAX_QUOTE = 200


def error_of(status: int, headers: Mapping[str, str], body: bytes, *, address: str, has_token: bool) -> TritonSamError:
    """The exception for a response with an error status, with the seconds of its ``Retry-After``.

    Args:
        headers: case-insensitive.
        has_token: whether the request had one.
    """
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return _token_error(status, body, address, has_token=has_token)
    detail = detail_of(body)
    error = from_status(status, _quoted(body)) if detail is None else error_of_detail(detail)
    error.retry_after = _seconds(headers.get("retry-after")) or error.retry_after
    return error


def error_of_detail(detail: Mapping[str, Any]) -> TritonSamError:
    """The exception for ``{"code", "message", ...}``."""
    cls = _BY_CODE.get(str(detail.get("code")), InternalError)
    return cls(str(detail.get("message")))


def detail_of(body: bytes | str) -> Mapping[str, Any] | None:
    """The value of ``error`` in a response of the service; None if another program has sent the response."""
    try:
        detail = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    return detail if isinstance(detail, dict) and {"code", "message"} <= set(detail) else None


def _token_error(status: int, body: bytes, address: str, *, has_token: bool) -> TritonSamError:
    detail = detail_of(body)
    if status == HTTPStatus.FORBIDDEN and detail is not None:
        return error_of_detail(detail)
    cls = NotAuthorised if status == HTTPStatus.UNAUTHORIZED else Forbidden
    if has_token:
        return cls(f"the service at {address} does not accept this token: check token=, --token or TRITON_SAM_TOKEN")
    return cls(f"the service at {address} requires a token: give token= or --token, or set TRITON_SAM_TOKEN")


def _quoted(body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_QUOTE].decode(errors="replace").split())[:_MAX_QUOTE]
    return f"a response that is not the service's: {text}" if text else "an empty response"


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` in seconds; None if it is missing or a date."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
