"""Who may come in, and by which path."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triton_sam.errors import NotAuthorised, RateLimited
from triton_sam.service.admission.guard import Guard
from triton_sam.service.faults import error_response
from triton_sam.service.telemetry import visits

#: What tells only that the service is there, or how it is used.
_OPEN_PATHS = frozenset({"/health", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
#: Asked for all day, by a machine that must not be kept out.
METRICS = "/metrics"
DOCS_FILES = "/docs-files"
PAGE_FILES, SAMPLES = "/app", "/samples"
#: The web page and its sample images are the same everywhere; the page asks its user for the token.
_PAGE_PATHS = frozenset({"/", "/favicon.ico", SAMPLES})
SUBPROTOCOL = "triton-sam"
_TOKEN_SUBPROTOCOL, _ENCODED_TOKEN_SUBPROTOCOL = "bearer.", "bearer64."


class SingleSlashes:
    """A doubled slash in a path is the same as a single one: some tools join addresses carelessly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and "//" in scope["path"]:
            raw_path = scope.get("raw_path") or b""
            scope = {
                **scope,
                "path": re.sub("/{2,}", "/", scope["path"]),
                "raw_path": re.sub(b"/{2,}", b"/", raw_path),
            }
        await self._app(scope, receive, send)


class Gate:
    """Refuses requests without the right token, and those of callers that send too many. Sockets ask the guard too."""

    def __init__(self, app: ASGIApp, *, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            address = address_of(scope)
            caller = self._guard.enter(bearer(Headers(scope=scope)), address)
            if caller is not None:
                visits.name_caller(caller.name)
            if scope["path"] != METRICS:
                self._guard.take(caller, address)
        except (NotAuthorised, RateLimited) as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def address_of(scope: Scope) -> str:
    """Where a caller is. Behind a proxy uvicorn puts in what the proxy says, if that is one of FORWARDED_ALLOW_IPS."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(f"{DOCS_FILES}/") or is_page(path)


def is_page(path: str) -> bool:
    """Whether a path belongs to the web page: a file that came with a package, and no work for a model."""
    return path in _PAGE_PATHS or path.startswith((f"{PAGE_FILES}/", f"{SAMPLES}/"))


def bearer(headers: Headers) -> str:
    """The token of an Authorization header, or nothing."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def socket_token(headers: Headers, subprotocols: Sequence[str]) -> str:
    """The token of a socket; a browser cannot set headers on one, so it may stand among the subprotocols.

    Names of subprotocols have a small alphabet; a token with other characters in it stands there as base64url.
    """
    for name in subprotocols:
        if name.startswith(_TOKEN_SUBPROTOCOL):
            return bearer(headers) or name[len(_TOKEN_SUBPROTOCOL) :]
        if name.startswith(_ENCODED_TOKEN_SUBPROTOCOL):
            return bearer(headers) or _decoded(name[len(_ENCODED_TOKEN_SUBPROTOCOL) :])
    return bearer(headers)


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:  # binascii.Error and UnicodeDecodeError are such
        return ""


def is_welcome(headers: Headers, origins: Sequence[str]) -> bool:
    """Whether a socket comes from no web page, from one of this host, or from one that was allowed."""
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
    # The service cannot tell whether a proxy in front of it speaks TLS: either scheme is its own.
    return page.scheme in ("http", "https") and bool(page.netloc) and page.netloc == headers.get("host", "").lower()
