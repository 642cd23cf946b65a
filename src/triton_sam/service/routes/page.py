"""Serves the web page: static files of the package, with compression, caching and security headers."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse

from triton_sam.service.admission.paths import PAGE_FILES

STATIC = Path(__file__).parents[1] / "static"
#: Only these are served. Python's mimetypes module depends on the machine's tables.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".webmanifest": "application/manifest+json; charset=utf-8",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
#: No part begins with a dot: no hidden files and no path traversal.
_SAFE_PATH = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; style-src 'self'; script-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # cached, but revalidated each time: a newer release shows at once
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHODS = ["GET", "HEAD"]
_REFUSES_GZIP = re.compile(r"\s*q\s*=\s*0(?:\.0*)?\s*")


def page_router(folder: Path = STATIC) -> APIRouter:
    """``/``, ``/favicon.ico`` and the page's files. The handlers are not coroutines, so they read files on threads."""
    router = APIRouter(include_in_schema=False)
    files = _Files(folder)

    @router.api_route("/", methods=_METHODS)
    def page(request: Request) -> Response:
        return files.response("index.html", request.headers)

    @router.api_route("/favicon.ico", methods=_METHODS)
    def icon(request: Request) -> Response:
        return files.response("icon.svg", request.headers)

    @router.api_route(f"{PAGE_FILES}/{{path:path}}", methods=_METHODS)
    def file(request: Request) -> Response:
        return files.response(request.path_params["path"], request.headers)

    return router


@dataclass(frozen=True, slots=True)
class _File:
    """The content of one file.

    Attributes:
        stamp: modification time and size, to detect changes.
        packed: the gzipped content; None if it is not smaller.
        tag: a weak ETag, because it is the same with and without gzip.
    """

    stamp: tuple[int, int]
    body: bytes
    packed: bytes | None
    tag: str


class _Files:
    """The files of a folder, read and compressed once, and again after a change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache: dict[str, _File] = {}

    def response(self, path: str, requested: Headers) -> Response:
        """The response with a file for these request headers; 404 if there is none. Blocks, so run it on a thread."""
        file = self._find(path)
        headers = {**_HEADERS, "ETag": file.tag}
        if _is_known(file.tag, requested.get("if-none-match", "")):
            return NotModifiedResponse(Headers(headers))
        body = file.body
        if file.packed is not None and _takes_gzip(requested.get("accept-encoding", "")):
            body = file.packed
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers={**headers, "Content-Type": _TYPES[Path(path).suffix]})

    def _find(self, path: str) -> _File:
        file = self._folder / path
        if not _SAFE_PATH.fullmatch(path) or file.suffix not in _TYPES:
            raise HTTPException(404)
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            cached = self._cache.get(path)
            if cached is None or cached.stamp != stamp:
                cached = self._cache[path] = _read(file, stamp)
        except OSError:  # no such file, a folder, or a name that is too long
            raise HTTPException(404) from None
        return cached


def _read(file: Path, stamp: tuple[int, int]) -> _File:
    body = file.read_bytes()
    packed = gzip.compress(body) if "charset" in _TYPES[file.suffix] else body
    digest = hashlib.sha256(body).hexdigest()[:32]
    return _File(stamp, body, packed if len(packed) < len(body) else None, f'W/"{digest}"')


def _is_known(tag: str, known: str) -> bool:
    """Whether an If-None-Match header has the tag. A proxy may have made a weak tag strong, or the reverse."""
    return known.strip() == "*" or tag[2:] in (each.strip().removeprefix("W/") for each in known.split(","))


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.lower().split(","):
        coding, _, quality = each.partition(";")
        if coding.strip() == "gzip":
            return not _REFUSES_GZIP.fullmatch(quality)
    return False
