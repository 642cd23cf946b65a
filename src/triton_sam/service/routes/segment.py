"""The JSON API: ``/v1/images`` encodes an image, ``/v1/segment`` returns masks."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.errors import ImageExpired
from triton_sam.service import json_bodies, schemas
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.forms import is_form, read_form
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.telemetry import request_context
from triton_sam.service.triton_calls import Turn, image_call, naming_the_model, segment_call

#: Fields of a form that are no JSON.
_FORM_TEXTS = frozenset({"image_key", "model", "text", "format", "session_id"})


def segment_router(gateway: Gateway, capacity: ServiceCapacity) -> APIRouter:
    """The router of ``/v1/images`` and ``/v1/segment``."""
    router = APIRouter(prefix="/v1", tags=["segment"])

    @router.post(
        "/images",
        summary="Encode an image once, for many segment requests",
        response_model=schemas.ImageAnswer,
        responses=schemas.error_responses(*schemas.TRITON_STATUSES),
        openapi_extra=schemas.body_of(schemas.ImageForm, "multipart/form-data"),
    )
    async def images(request: Request) -> Response:
        async with read_form(request) as form:
            turn = Turn(form.name("session_id"), background=form.flag("background"))
            if turn.background:
                capacity.check_background(request.url.path)
            served = await gateway.segmenters.find(form.name("model"))
            image = await form.file("image")
        call = await run_in_threadpool(lambda: image_call(served, image, None, gateway.settings))
        answer = json_output(await gateway.infer(request, turn.of_call(call), turn.session))
        request_context.set_image(_image_key(answer))
        return _json_response(answer)

    @router.post(
        "/segment",
        summary="Segment the objects at points, boxes or masks, or all that a text or examples name",
        description="With an image_key from /v1/images the image is not sent again, so a request has only a few bytes. "
        "An image file can also be sent in a form, with the other fields.",
        response_model=schemas.SegmentAnswer,
        responses=schemas.error_responses(*schemas.TRITON_STATUSES),
        openapi_extra=schemas.json_or_form(schemas.SegmentRequest, schemas.SegmentForm),
    )
    async def segment(request: Request) -> Response:
        document, size, image = await _fields(request, gateway)
        turn = Turn.of(document)
        if turn.background:
            capacity.check_background(request.url.path)
        call = turn.of_call(await segment_call(gateway, document, size, image))
        try:
            outputs = await gateway.infer(request, call, turn.session, latest_wins=turn.latest_wins)
        except ImageExpired as error:
            raise await naming_the_model(gateway, document, error) from error
        return _json_response(json_output(outputs))

    return router


async def _fields(request: Request, gateway: Gateway) -> tuple[dict[str, Any], int, bytes | None]:
    """(the fields of a segment request, the size of their text in bytes, the image of a form)."""
    if is_form(request):
        async with read_form(request) as form:
            texts = form.texts()
            image = await form.optional_file("image")
        # No text of these begins like a list; several texts are one.
        plain = {field for field in _FORM_TEXTS & set(texts) if not texts[field].startswith("[")}
        document = {
            field: text if field in plain else json_bodies.json_value(text, field) for field, text in texts.items()
        }
        return document, 0, image
    body = await request.body()
    max_parts = json_bodies.max_parts(gateway.settings)
    return await json_bodies.by_size(len(body), lambda: json_bodies.json_object(body, max_parts)), len(body), None


def _image_key(document: bytes) -> str:
    """The image_key of a response, or an empty string. Parses the text, which is short."""
    try:
        return str(json.loads(document)["image_key"])
    except (ValueError, LookupError, TypeError):
        return ""


def _json_response(document: bytes) -> Response:
    return Response(document, media_type="application/json")
