"""``/v1/videos``: uploads, frames, what is known of a video, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput, NotFound
from triton_sam.service.admission.capacity import DecodingSlots
from triton_sam.service.admission.paths import VIDEOS
from triton_sam.service.event_streams import time_limit
from triton_sam.service.json_bodies import short_body
from triton_sam.service.videos import video_schemas
from triton_sam.service.videos.answers import details_document, film_document, frame_document, jpeg_of
from triton_sam.service.videos.bodies import checked_fields, parse, whole_text
from triton_sam.service.videos.callers import caller_of, is_known
from triton_sam.service.videos.exports import FORMS, checked_form, written
from triton_sam.service.videos.films import Films
from triton_sam.service.videos.making import empty_film, film_of_upload, put_frame, unless_gone

_MAX_JSON = 64 * 1024
_FRAME_CACHE = "private, max-age=86400, immutable"
_SMALLEST, _WIDEST = 8, 8192


def videos_router(films: Films, slots: DecodingSlots) -> APIRouter:
    """Everything about a video but its objects.

    Args:
        slots: of pictures that are decoded at a time.
    """
    router = APIRouter(prefix=VIDEOS, tags=["videos"])
    _add_making(router, films)
    _add_reading(router, films)
    _add_frames(router, films, slots)
    _add_export(router, films)
    return router


def _add_making(router: APIRouter, films: Films) -> None:
    @router.post(
        "",
        status_code=201,
        summary="Send a video, or begin an empty one",
        description="A form with a video file, a TIFF stack or an animated WebP, which is read before the answer "
        "comes; or JSON with `width` and `height` for a video whose frames come one by one.",
        response_model=video_schemas.Video,
        responses=video_schemas.errors(400, 404, 409, 415, 499, 501, 503),
        openapi_extra=video_schemas.making(),
    )
    async def create(request: Request) -> Response:
        caller = caller_of(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            body = await short_body(request, _MAX_JSON)
            document = parse(body, films.settings, '{"width": 1280, "height": 720}')
            film = await empty_film(films, document, caller)
        else:
            film = await film_of_upload(films, request, caller)
        return JSONResponse(
            film_document(film, films.settings.video_keep_seconds),
            status_code=201,
            headers={"Location": f"{VIDEOS}/{film.facts.id}"},
        )

    @router.delete(
        "/{video_id}",
        status_code=204,
        summary="Delete a video",
        responses=video_schemas.errors(404, 503),
    )
    async def delete(video_id: str, request: Request) -> Response:
        await films.remove(films.get(video_id, caller_of(request)))
        return Response(status_code=204)


def _add_reading(router: APIRouter, films: Films) -> None:
    keep = films.settings.video_keep_seconds

    @router.get(
        "",
        summary="The caller's videos",
        description="404 if the service has no API tokens: it does not know then whose a video is.",
        response_model=video_schemas.VideoList,
        responses=video_schemas.errors(404, 503),
    )
    async def listed(request: Request) -> Response:
        if not is_known(request):
            raise NotFound("the list of videos needs API tokens, by which the service knows whose they are")
        found = [film_document(film, keep) for film in films.of(caller_of(request))]
        return JSONResponse({"videos": found})

    @router.get(
        "/{video_id}",
        summary="A video, its objects, and how far they were tracked",
        response_model=video_schemas.VideoDetails,
        responses=video_schemas.errors(404, 503),
    )
    async def described(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with film.used():  # who looks at it uses it
            return JSONResponse(await details_document(film, keep))

    @router.get(
        "/{video_id}/masks",
        summary="The masks that are kept of a frame",
        response_model=video_schemas.FrameResults,
        responses=video_schemas.errors(400, 404, 503),
        openapi_extra=video_schemas.parameters(frame_index=True),
    )
    async def masks(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        index = _wanted(request, "frame_index", 0)
        if index is None:
            raise InvalidInput("frame_index is missing: add ?frame_index=0 to the address")
        film.check_frame(index)
        with film.used(), film.disk():
            found = await asyncio.to_thread(film.results.get, index)
        return JSONResponse({"frame_index": index, "results": []} if found is None else frame_document(found))


def _add_export(router: APIRouter, films: Films) -> None:
    @router.get(
        "/{video_id}/export",
        summary="What was found, as one file",
        description="mp4: the frames with the objects tinted. png: a zip of label images. coco, youtube_vis: JSON. "
        "tiff: a label volume.",
        response_class=Response,
        responses={**video_schemas.export(), **video_schemas.errors(400, 404, 409, 499, 503)},
        openapi_extra=video_schemas.form_parameter(tuple(FORMS)),
    )
    async def export(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        form = checked_form(checked_fields(dict(request.query_params), ("format",)).get("format"))
        with film.used():
            return await unless_gone(request, written(films, film, form))


def _add_frames(router: APIRouter, films: Films, slots: DecodingSlots) -> None:
    @router.get(
        "/{video_id}/frames/{number}",
        summary="A frame as JPEG",
        response_class=Response,
        responses={**video_schemas.jpeg(), **video_schemas.errors(400, 404, 503)},
        openapi_extra=video_schemas.parameters(width=True),
    )
    async def frame(video_id: str, number: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        index, width = _number(number), _wanted(request, "width", _SMALLEST)
        if width is not None and width > _WIDEST:
            raise InvalidInput(f"width must be at most {_WIDEST:,}: leave it out for the frame as it is")
        film.check_frame(index)
        tag = f'"{film.facts.id}-{index}-{width or 0}"'
        headers = {"ETag": tag, "Cache-Control": _FRAME_CACHE}
        with film.used():
            if tag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            stored = await asyncio.to_thread(film.store.read, index)
            async with slots:
                picture = await asyncio.to_thread(guarded, lambda: jpeg_of(stored.data, width, films.limits))
        return Response(picture, media_type="image/jpeg", headers=headers)

    @router.put(
        "/{video_id}/frames/{number}",
        summary="Add the next frame to a video that was begun empty",
        response_model=video_schemas.FrameCount,
        responses=video_schemas.errors(400, 404, 409, 503),
        openapi_extra=video_schemas.image_body(),
    )
    async def add(video_id: str, number: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with film.used(), time_limit(films.settings.service_seconds):
            return JSONResponse({"frames": await put_frame(films, film, _number(number), request)})


def _number(text: str) -> int:
    found = whole_text(text, "the frame's number", 0)
    assert found is not None
    return found


def _wanted(request: Request, field: str, least: int) -> int | None:
    known: dict[str, Any] = dict(request.query_params)
    checked_fields(known, (field,))
    return whole_text(known.get(field), field, least)
