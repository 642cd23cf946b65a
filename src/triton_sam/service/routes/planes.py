"""Pages and channels of scientific images: ``/v1/describe`` names them, ``/v1/planes`` returns their samples."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from triton_sam.core.image_planes import ImagePlanes, read_pages
from triton_sam.core.plane_encoding import EncodedPlanes, encode_planes
from triton_sam.core.tiff_directories import MAX_PAGES
from triton_sam.errors import InvalidInput
from triton_sam.service import schemas
from triton_sam.service.admission.capacity import DecodingSlots
from triton_sam.service.forms import read_form
from triton_sam.settings import Settings

PLANES_HEADER = "X-Planes"
_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": name,
        "in": "query",
        "description": text,
        "schema": {"type": "integer", "minimum": least, "maximum": MAX_PAGES},
    }
    for name, least, text in (("first", 0, "the first page; default 0"), ("count", 1, "number of pages; default 1"))
]
_CHUNK = 2**20
#: Of one answer, unless a single page has more: the service holds it in memory while it is sent.
_MAX_ANSWER_BYTES = 256 * 2**20


def planes_router(settings: Settings, slots: DecodingSlots) -> APIRouter:
    """``/v1/describe`` and ``/v1/planes``; ``slots`` limits how many images are decoded at a time."""
    router = APIRouter(prefix="/v1", tags=["segment"])

    @router.post(
        "/describe",
        summary="Name the pages and channels of an image file",
        description="Reads headers only. Also for files that no model takes as they are, such as two channels.",
        response_model=schemas.DescribeAnswer,
        responses=schemas.error_responses(400),
        openapi_extra=schemas.body_of(schemas.PreviewForm, "multipart/form-data"),
    )
    async def describe(request: Request) -> schemas.DescribeAnswer:
        async with read_form(request) as form:
            image = await form.file("image")
        async with slots:
            found = await run_in_threadpool(lambda: _planes_of(image, settings).describe())
        return schemas.DescribeAnswer(**asdict(found))

    @router.post(
        "/planes",
        summary="Read the samples of an image file",
        description=(
            "For each page [C,H,W], planar, upright, little-endian: uint8 if the file has 8 bits, else uint16. "
            "The header X-Planes has their shape, and how the file's values were mapped: "
            "value = low + sample / 65535 * (high - low). A long answer stops after fewer pages than were asked for."
        ),
        response_class=Response,
        responses={**_answer(), **schemas.error_responses(400)},
        openapi_extra={**schemas.body_of(schemas.PreviewForm, "multipart/form-data"), "parameters": _PARAMETERS},
    )
    async def planes(request: Request) -> Response:
        first, count = _whole(request, "first", 0, 0), _whole(request, "count", 1, 1)
        async with read_form(request) as form:
            image = await form.file("image")
        async with slots:
            found = await run_in_threadpool(lambda: _read(image, settings, first, count))
        headers = {PLANES_HEADER: _header(found), "Content-Length": str(sum(page.nbytes for page in found.pages))}
        return StreamingResponse(_chunks(found), media_type="application/octet-stream", headers=headers)

    return router


def _whole(request: Request, name: str, default: int, least: int) -> int:
    """A whole number of the query."""
    found = request.query_params.getlist(name) or [str(default)]
    text = found[0]
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else -1
    if len(found) > 1 or not least <= value <= MAX_PAGES:
        raise InvalidInput(
            f"{name} must be one whole number from {least} to {MAX_PAGES}, not {text[:60]!r}", field=name
        )
    return value


def _planes_of(image: bytes, settings: Settings) -> ImagePlanes:
    return ImagePlanes(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)


def _read(image: bytes, settings: Settings, first: int, count: int) -> EncodedPlanes:
    return encode_planes(read_pages(_planes_of(image, settings), first, count, max_bytes=_MAX_ANSWER_BYTES))


def _header(found: EncodedPlanes) -> str:
    channels, height, width = found.pages[0].shape
    document = {
        "width": width,
        "height": height,
        "channels": channels,
        "pages": len(found.pages),
        "dtype": found.dtype,
        "low": found.low,
        "high": found.high,
    }
    if found.not_finite:
        document["not_finite"] = found.not_finite
    return json.dumps(document)


async def _chunks(found: EncodedPlanes) -> AsyncIterator[memoryview]:
    for page in found.pages:
        view = page.reshape(-1).view("u1").data
        for start in range(0, len(view), _CHUNK):
            yield view[start : start + _CHUNK]


def _answer() -> dict[int | str, dict[str, object]]:
    answer = schemas.response_of("The samples", "application/octet-stream", binary=True)
    shape = {"description": "JSON: width, height, channels, pages, dtype, low, high", "schema": {"type": "string"}}
    answer[200]["headers"] = {PLANES_HEADER: shape}
    return answer
