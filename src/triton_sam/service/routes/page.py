"""The web page: files that came with the package, as a browser wants them."""

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

from triton_sam.service.admission.access import PAGE_FILES

STATIC = Path(__file__).parents[1] / "static"
#: What is served, and as what: Python's own guesses come from the machine's tables. Others are not for browsers.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".webmanifest": "application/manifest+json; charset=utf-8",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
#: No part begins with a dot: neither hidden files nor a way out of the folder.
_SAFE_PATH = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; style-src 'self'; script-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for each time: a newer release is seen at once
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHODS = ["GET", "HEAD"]
_REFUSES_GZIP = re.compile(r"\s*q\s*=\s*0(?:\.0*)?\s*")


def page_router(folder: Path = STATIC) -> APIRouter:
    """``/``, ``/favicon.ico`` and the page's files. Its routes are no coroutines, so that they read on threads."""
    router = APIRouter(include_in_schema=False)
    files = _Files(folder)

    @router.api_route("/", methods=_METHODS)
    def page(request: Request) -> Response:
        return files.answer("index.html", request.headers)

    @router.api_route("/favicon.ico", methods=_METHODS)
    def icon(request: Request) -> Response:
        return files.answer("icon.svg", request.headers)

    @router.api_route(f"{PAGE_FILES}/{{path:path}}", methods=_METHODS)
    def file(request: Request) -> Response:
        return files.answer(request.path_params["path"], request.headers)

    return router


@dataclass(frozen=True, slots=True)
class _File:
    """One file as it is sent.

    Attributes:
        stamp: time of change and size, which tell whether it is still that file.
        packed: its gzip; None where that would gain nothing.
        tag: the same for both: they mean the same, and so it is a weak one.
    """

    stamp: tuple[int, int]
    body: bytes
    packed: bytes | None
    tag: str


class _Files:
    """The files of a folder, read and compressed once, and again when they have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _File] = {}

    def answer(self, path: str, asked: Headers) -> Response:
        """A file for these request headers; 404 where there is none. Reads a disk: for a thread."""
        file = self._find(path)
        headers = {**_HEADERS, "ETag": file.tag}
        if _is_known(file.tag, asked.get("if-none-match", "")):
            return NotModifiedResponse(Headers(headers))
        body = file.body
        if file.packed is not None and _takes_gzip(asked.get("accept-encoding", "")):
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
            kept = self._kept.get(path)
            if kept is None or kept.stamp != stamp:
                kept = self._kept[path] = _read(file, stamp)
        except OSError:  # no such file, a folder, a name that is too long
            raise HTTPException(404) from None
        return kept


def _read(file: Path, stamp: tuple[int, int]) -> _File:
    body = file.read_bytes()
    packed = gzip.compress(body) if "charset" in _TYPES[file.suffix] else body
    digest = hashlib.sha256(body).hexdigest()[:32]
    return _File(stamp, body, packed if len(packed) < len(body) else None, f'W/"{digest}"')


def _is_known(tag: str, known: str) -> bool:
    """Whether the tag is among those of an If-None-Match; a proxy may have made a weak one strong or the other way."""
    return known.strip() == "*" or tag[2:] in (each.strip().removeprefix("W/") for each in known.split(","))


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.lower().split(","):
        coding, _, quality = each.partition(";")
        if coding.strip() == "gzip":
            return not _REFUSES_GZIP.fullmatch(quality)
    return False
