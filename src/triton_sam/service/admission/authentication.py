"""Authentication of HTTP requests and WebSockets: bearer tokens and allowed origins."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triton_sam.errors import NotAuthorised, RateLimited
from triton_sam.service.admission import paths
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.error_responses import error_response
from triton_sam.service.telemetry import request_context

SUBPROTOCOL = "triton-sam"
_TOKEN_SUBPROTOCOL, _ENCODED_TOKEN_SUBPROTOCOL = "bearer.", "bearer64."


class AuthenticationMiddleware:
    """Refuses requests without a valid token, and callers above their rate limit. WebSockets check for themselves."""

    def __init__(self, app: ASGIApp, *, access: AccessControl) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or paths.is_public(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            address = client_address(scope)
            caller = self._access.authenticate(bearer_token(Headers(scope=scope)), address)
            if caller is not None:
                request_context.set_caller(caller.name)
            if scope["path"] != paths.METRICS:
                self._access.check_rate(caller, address)
        except (NotAuthorised, RateLimited) as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def client_address(scope: Scope) -> str:
    """The client's IP address. Behind a proxy of FORWARDED_ALLOW_IPS, uvicorn has put in the forwarded one."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def bearer_token(headers: Headers) -> str:
    """The token of the Authorization header, or an empty string."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def websocket_token(headers: Headers, subprotocols: Sequence[str]) -> str:
    """The token of a WebSocket. A browser cannot set its headers, so the token may be one of the subprotocols.

    Subprotocol names have a small alphabet; a token with other characters is sent as base64url.
    """
    for name in subprotocols:
        if name.startswith(_TOKEN_SUBPROTOCOL):
            return bearer_token(headers) or name[len(_TOKEN_SUBPROTOCOL) :]
        if name.startswith(_ENCODED_TOKEN_SUBPROTOCOL):
            return bearer_token(headers) or _decoded(name[len(_ENCODED_TOKEN_SUBPROTOCOL) :])
    return bearer_token(headers)


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:  # the base class of binascii.Error and UnicodeDecodeError
        return ""


def is_allowed_origin(headers: Headers, origins: Sequence[str]) -> bool:
    """Whether a WebSocket comes from no web page, from a page of this host, or from one of the allowed origins."""
    origin = headers.get("origin")
    if origin is None or "*" in origins:
        return True
    origin = origin.lower()
    if origin.rstrip("/") in (allowed.lower() for allowed in origins):
        return True
    try:
        page = urlsplit(origin)
    except ValueError:
        return False
    # The service does not know whether a proxy in front of it uses TLS, so both schemes count as its own.
    return page.scheme in ("http", "https") and bool(page.netloc) and page.netloc == headers.get("host", "").lower()
