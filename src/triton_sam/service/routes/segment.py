"""The modern interface: images in, masks out, in JSON."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.errors import InvalidInput
from triton_sam.service import calls, schemas
from triton_sam.service.forms import checked_name, read_form
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.telemetry import visits


def segment_router(gateway: Gateway) -> APIRouter:
    """``/v1/images`` and ``/v1/segment``."""
    router = APIRouter(prefix="/v1", tags=["segment"])

    @router.post(
        "/images",
        summary="Encode an image once, for many clicks",
        response_model=schemas.ImageAnswer,
        responses=schemas.refusals(*schemas.WORK),
        openapi_extra=schemas.body_of(schemas.ImageForm, "multipart/form-data"),
    )
    async def images(request: Request) -> Response:
        async with read_form(request) as form:
            session = form.name("session_id")
            served = await gateway.models.find(form.name("model"))
            image = await form.file("image")
        call = await run_in_threadpool(lambda: calls.image_call(served, image, None, gateway.settings))
        answer = json_output(await gateway.infer(request, call, session))
        visits.name_image(_key_of(answer))
        return _as_it_came(answer)

    @router.post(
        "/segment",
        summary="Segment what points, boxes or masks show",
        description="With an image_key of /v1/images this is a click: a few bytes in, a mask out.",
        response_model=schemas.SegmentAnswer,
        responses=schemas.refusals(*schemas.WORK),
        openapi_extra=schemas.body_of(schemas.SegmentRequest, "application/json"),
    )
    async def segment(request: Request) -> Response:
        body = await request.body()
        document = await calls.by_size(len(body), lambda: calls.json_object(body, calls.most_parts(gateway.settings)))
        session = checked_name(document.pop("session_id", None), "session_id")
        latest_wins = document.pop("latest_wins", False)
        if not isinstance(latest_wins, bool):
            raise InvalidInput("latest_wins is true or false")
        if latest_wins and session is None:
            raise InvalidInput("latest_wins needs a session_id: whose requests shall it supersede?")
        call = await calls.segment_call(gateway, document, len(body))
        return _as_it_came(json_output(await gateway.infer(request, call, session, latest_wins=latest_wins)))

    return router


def _key_of(document: bytes) -> str:
    """Of the answer about an image, which is short; empty where it has none."""
    try:
        return str(json.loads(document)["image_key"])
    except (ValueError, LookupError, TypeError):
        return ""


def _as_it_came(document: bytes) -> Response:
    return Response(document, media_type="application/json")
