"""Converts images that browsers cannot show (TIFF, 16 bits, JPEG 2000, PPM) to JPEG."""

from __future__ import annotations

import io

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.core.images import EncodedImage
from triton_sam.errors import TooLarge
from triton_sam.service import schemas
from triton_sam.service.admission.capacity import DecodingSlots
from triton_sam.service.forms import read_form
from triton_sam.settings import Settings

SIZE_HEADER = "X-Image-Size"
_QUALITY = 92
#: libjpeg's limit; the format's own is a few pixels larger.
_MAX_SIDE = 65_500


def preview_router(settings: Settings, slots: DecodingSlots) -> APIRouter:
    """``/v1/preview``; ``slots`` limits how many images are decoded at a time."""
    router = APIRouter(prefix="/v1", tags=["segment"])

    @router.post(
        "/preview",
        summary="Convert an image to JPEG for a browser",
        description="Upright, RGB and of the same size; more than 8 bits are scaled as for the models.",
        response_class=Response,
        responses={**_answer(), **schemas.error_responses(400)},
        openapi_extra=schemas.body_of(schemas.PreviewForm, "multipart/form-data"),
    )
    async def preview(request: Request) -> Response:
        async with read_form(request) as form:
            image = await form.file("image")
        async with slots:
            size, picture = await run_in_threadpool(lambda: _jpeg(image, settings))
        return Response(picture, media_type="image/jpeg", headers={SIZE_HEADER: "{}x{}".format(*size)})

    return router


def _jpeg(image: bytes, settings: Settings) -> tuple[tuple[int, int], bytes]:
    """((width, height) after the EXIF rotation, the JPEG file)."""
    encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    width, height = encoded.size
    if max(width, height) > _MAX_SIDE:  # checked before any pixel is decoded
        raise TooLarge(
            f"the image has {width} x {height} pixels, but a JPEG has sides of at most {_MAX_SIDE:,}: "
            "send tiles of it, or a smaller one"
        )
    buffer = io.BytesIO()
    # Chroma at full resolution, because masks are judged along edges of colour.
    encoded.pixels().save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return encoded.size, buffer.getvalue()


def _answer() -> dict[int | str, dict[str, object]]:
    answer = schemas.response_of("The image as JPEG", "image/jpeg", binary=True)
    size = {"description": "width x height of the image", "schema": {"type": "string", "pattern": "^[0-9]+x[0-9]+$"}}
    answer[200]["headers"] = {SIZE_HEADER: size}
    return answer
