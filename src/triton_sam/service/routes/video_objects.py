"""Objects of a video: prompts, propagation, and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from triton_sam.errors import InvalidInput
from triton_sam.service.admission.paths import VIDEOS
from triton_sam.service.event_streams import EventStream, time_limit
from triton_sam.service.json_bodies import by_size
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.videos import video_schemas
from triton_sam.service.videos.answers import (
    NDJSON,
    SAVI,
    error_of,
    frame_document,
    line,
    savi_document,
    savi_part,
)
from triton_sam.service.videos.bodies import (
    PROMPT_FIELDS,
    PROPAGATE_FIELDS,
    PromptBody,
    checked_fields,
    json_body,
    optional_whole,
    prompt_of,
    whole,
    whole_text,
)
from triton_sam.service.videos.callers import caller_of
from triton_sam.service.videos.film import Film
from triton_sam.service.videos.films import Films
from triton_sam.service.videos.making import disconnect
from triton_sam.service.videos.sessions import end_within
from triton_sam.service.videos.tracking import BOTH, FORWARD, Tracking, passes_of
from triton_sam.video.found import VideoFrame

_STOP_SECONDS = 8.0
_Found = AsyncGenerator[VideoFrame, None]


def video_objects_router(films: Films, metrics: ServiceMetrics) -> APIRouter:
    """Prompts and propagation."""
    router = APIRouter(prefix=VIDEOS, tags=["videos"])
    _add_prompts(router, films)
    _add_ends(router, films)
    _add_propagation(router, films, metrics)
    return router


def _add_prompts(router: APIRouter, films: Films) -> None:
    settings = films.settings

    @router.post(
        "/{video_id}/prompts",
        summary="Prompt an object in a frame",
        description="In a frame that was tracked before, this corrects it. Answers all objects of the frame.",
        response_model=video_schemas.FrameResults,
        responses=video_schemas.errors(400, 404, 422, 499, 503),
        openapi_extra=video_schemas.body(video_schemas.PromptRequest),
    )
    async def prompt(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with film.used(), time_limit(settings.service_seconds):
            document = await json_body(request, settings, PROMPT_FIELDS, '{"frame_index": 0, "object_id": 1, ...}')
            wanted = prompt_of(document, settings)
            film.check_frame(wanted.frame)
            return JSONResponse(frame_document(await prompted(film, wanted)))

    @router.delete(
        "/{video_id}/prompts",
        summary="Take an object's prompts in a frame away",
        response_model=video_schemas.FrameResults,
        responses=video_schemas.errors(400, 404, 422, 499, 503),
        openapi_extra=video_schemas.parameters(frame_index=True, object_id=True),
    )
    async def clear(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        known = checked_fields(dict(request.query_params), ("frame_index", "object_id"))
        frame = whole_text(known.get("frame_index"), "frame_index", 0)
        name = whole_text(known.get("object_id"), "object_id", 1)
        if frame is None or name is None:
            raise InvalidInput("frame_index and object_id are needed: add ?frame_index=0&object_id=1 to the address")
        film.check_frame(frame)
        with film.used(), time_limit(settings.service_seconds):
            return JSONResponse(frame_document(await film.clear_prompts(frame, name)))


async def prompted(film: Film, wanted: PromptBody) -> VideoFrame:
    """All objects of a frame, after a prompt there."""
    if wanted.mask is None:
        return await film.prompt(
            wanted.frame,
            wanted.object,
            wanted.points,
            wanted.labels,
            wanted.box,
            clear_old_points=wanted.clear_old_points,
        )
    wanted.mask.check_size(*film.facts.size)
    mask = await by_size(2**31, wanted.mask.pixels)  # on a thread
    return await film.prompt_mask(wanted.frame, wanted.object, mask)


def _add_ends(router: APIRouter, films: Films) -> None:
    settings = films.settings

    @router.delete(
        "/{video_id}/objects/{object_id}",
        status_code=204,
        summary="Forget an object",
        responses=video_schemas.errors(400, 404, 499, 503),
    )
    async def remove(video_id: str, object_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with film.used(), time_limit(settings.service_seconds):
            await film.remove_object(whole_text(object_id, "the object's number", 1) or 0)
        return Response(status_code=204)

    @router.post(
        "/{video_id}/reset",
        status_code=204,
        summary="Forget all objects, prompts and results",
        responses=video_schemas.errors(404, 499, 503),
    )
    async def reset(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with film.used(), time_limit(settings.service_seconds):
            await film.reset()
        return Response(status_code=204)

    @router.post(
        "/{video_id}/cancel",
        summary="Stop the propagation",
        response_model=video_schemas.Cancelled,
        responses=video_schemas.errors(404, 503),
    )
    async def cancel(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        tracking = film.tracking
        if tracking is not None:
            with film.used():
                await end_within(_STOP_SECONDS, tracking.stop())  # its client may not read what is sent
        return JSONResponse({"cancelled": tracking is not None})


def _add_propagation(router: APIRouter, films: Films, metrics: ServiceMetrics) -> None:
    settings = films.settings

    @router.post(
        "/{video_id}/propagate",
        summary="Track all objects through the video",
        description="Results are streamed as they come, a line of JSON for each frame; the last line is "
        '`{"done": true, "frames": n}`, `{"cancelled": true, "frames": n}` or `{"error": {...}}`. With `Accept: '
        "multipart/x-savi-stream` they come as the parts of Meta's demo. Hanging up stops it.",
        response_class=Response,
        responses={**video_schemas.stream(), **video_schemas.errors(400, 404, 409, 422, 499, 503)},
        openapi_extra=video_schemas.body(video_schemas.PropagateRequest, required=False),
    )
    async def propagate(video_id: str, request: Request) -> Response:
        film = films.get(video_id, caller_of(request))
        with time_limit(settings.service_seconds):
            document = await json_body(request, settings, PROPAGATE_FIELDS, '{"direction": "forward"}')
        direction = document.get("direction", BOTH if film.facts.axis == "z" else FORWARD)
        if not isinstance(direction, str):
            raise InvalidInput("direction must be a text: forward, backward or both")
        most = None if document.get("max_frames") is None else whole(document, "max_frames", 1)
        start = optional_whole(document, "start_frame_index", 0)
        tracking = Tracking(film, passes_of(film, direction, start, most))
        results = _until_gone(tracking, request, metrics)
        try:
            first = await anext(results, None)  # an error before the first result is told by the status code
        except BaseException:
            await results.aclose()
            tracking.end()
            raise
        if SAVI in request.headers.get("accept", "").lower():
            return EventStream(
                _parts(first, results),
                results,
                lambda error: savi_part(error_of(error)),
                f"{SAVI}; boundary=frame",
            )
        return EventStream(_lines(tracking, first, results), results, lambda error: line(error_of(error)), NDJSON)


async def _until_gone(tracking: Tracking, request: Request, metrics: ServiceMetrics) -> _Found:
    """The results; stopped when the client disconnects."""

    async def watch() -> None:
        await disconnect(request)
        tracking.cancel()

    watcher = asyncio.create_task(watch())
    try:
        async with contextlib.aclosing(tracking.frames()) as results:
            async for found in results:
                metrics.video_results.inc()
                yield found
    finally:
        watcher.cancel()
        tracking.end()


async def _all(first: VideoFrame | None, rest: _Found) -> AsyncIterator[VideoFrame]:
    if first is not None:
        yield first
        async for found in rest:
            yield found


async def _lines(tracking: Tracking, first: VideoFrame | None, rest: _Found) -> AsyncGenerator[bytes, None]:
    async for found in _all(first, rest):
        yield line(frame_document(found))
    yield line({"cancelled" if tracking.is_cancelled else "done": True, "frames": tracking.count})


async def _parts(first: VideoFrame | None, rest: _Found) -> AsyncGenerator[bytes, None]:
    async for found in _all(first, rest):
        yield savi_part(savi_document(found))
