"""Image files that a browser cannot show (TIFF, 16 bits, JPEG 2000, PPM) as one that it can."""

from __future__ import annotations

import asyncio
import io

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.core.images import EncodedImage
from triton_sam.errors import TooLarge
from triton_sam.service import schemas
from triton_sam.service.forms import read_form
from triton_sam.settings import Settings

SIZE_HEADER = "X-Image-Size"
_QUALITY = 92
#: Of libjpeg; the format itself ends a few pixels later.
_LONGEST_SIDE = 65_500
#: Nowhere else does the service decode pixels: the largest image takes about a gigabyte, and seconds.
_AT_A_TIME = 2


def preview_router(settings: Settings) -> APIRouter:
    """``/v1/preview``."""
    router = APIRouter(prefix="/v1", tags=["segment"])
    places = asyncio.Semaphore(_AT_A_TIME)

    @router.post(
        "/preview",
        summary="An image as a browser can show it",
        description="Upright, RGB, of the same size; more than 8 bits are scaled as the models see them.",
        response_class=Response,
        responses={**_answer(), **schemas.refusals(400)},
        openapi_extra=schemas.body_of(schemas.PreviewForm, "multipart/form-data"),
    )
    async def preview(request: Request) -> Response:
        async with read_form(request) as form:
            image = await form.file("image")
        async with places:
            size, picture = await run_in_threadpool(lambda: _jpeg(image, settings))
        return Response(picture, media_type="image/jpeg", headers={SIZE_HEADER: "{}x{}".format(*size)})

    return router


def _jpeg(image: bytes, settings: Settings) -> tuple[tuple[int, int], bytes]:
    """(width, height) as a person sees it, and the JPEG."""
    encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    width, height = encoded.size
    if max(width, height) > _LONGEST_SIDE:  # known before a pixel is decoded
        raise TooLarge(
            f"the image has {width} x {height} pixels and a JPEG has sides of at most {_LONGEST_SIDE:,}: "
            "send tiles of it, or a smaller one"
        )
    buffer = io.BytesIO()
    # Chroma at full resolution: masks are judged along edges of colour.
    encoded.pixels().save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return encoded.size, buffer.getvalue()


def _answer() -> dict[int | str, dict[str, object]]:
    answer = schemas.answer_of("The image as JPEG", "image/jpeg", binary=True)
    size = {"description": "width x height of the image", "schema": {"type": "string", "pattern": "^[0-9]+x[0-9]+$"}}
    answer[200]["headers"] = {SIZE_HEADER: size}
    return answer
