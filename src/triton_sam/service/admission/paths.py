"""Which paths need no API token, and the normalization of paths."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

#: They reveal only that the service runs and how it is used.
_PUBLIC_PATHS = frozenset({"/health", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
#: Scraped all day by a machine that must not be rate-limited.
METRICS = "/metrics"
DOCS_FILES = "/docs-files"
PAGE_FILES, SAMPLES = "/app", "/samples"
VIDEOS = "/v1/videos"
VIDEO_LIVE = f"{VIDEOS}/live"
#: Stands for all requests about videos that may keep a slot for minutes.
LONG_VIDEOS = f"{VIDEOS} (uploads, propagations, exports)"
_LONG = (VIDEOS, "/propagate")
#: The web page and its sample images are the same everywhere; the page asks its user for the token.
_PAGE_PATHS = frozenset({"/", "/favicon.ico", SAMPLES})


class SingleSlashes:
    """Middleware that treats a doubled slash in a path as a single one: some tools join URLs carelessly."""

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


def is_public(path: str) -> bool:
    """Whether a path needs no API token."""
    return path in _PUBLIC_PATHS or path.startswith(f"{DOCS_FILES}/") or is_page(path)


def is_page(path: str) -> bool:
    """Whether a path belongs to the web page: a file of the package, no work for a model."""
    return path in _PAGE_PATHS or path.startswith((f"{PAGE_FILES}/", f"{SAMPLES}/"))


def is_video(path: str) -> bool:
    """Whether a path belongs to videos: their requests may take long, and uploads go to the disk."""
    return path == VIDEOS or path.startswith(f"{VIDEOS}/")


def group_of(method: str, path: str) -> str:
    """The path by which slots are counted."""
    is_long = is_video(path) and (path.endswith("/export") or (method == "POST" and path.endswith(_LONG)))
    return LONG_VIDEOS if is_long else path
