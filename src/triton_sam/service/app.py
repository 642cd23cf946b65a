"""Assembles the FastAPI application: routes, middleware, OpenAPI document."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from triton_sam import __version__
from triton_sam.core.samples import photograph_folder
from triton_sam.service import error_responses, schemas
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.admission.authentication import AuthenticationMiddleware
from triton_sam.service.admission.capacity import DecodingSlots, ServiceCapacity
from triton_sam.service.admission.concurrency import ConcurrencyMiddleware
from triton_sam.service.admission.load_shedding import LoadShedder
from triton_sam.service.admission.paths import DOCS_FILES, LONG_VIDEOS, SingleSlashes
from triton_sam.service.admission.request_limits import RequestLimits
from triton_sam.service.chat import completions
from triton_sam.service.chat import schemas as chat_schemas
from triton_sam.service.gateway import Gateway
from triton_sam.service.routes import everything_schemas, ground_schemas
from triton_sam.service.routes.everything import EVERYTHING, everything_router
from triton_sam.service.routes.ground import GROUND, ground_router
from triton_sam.service.routes.hover import hover_router
from triton_sam.service.routes.info import info_router
from triton_sam.service.routes.page import page_router
from triton_sam.service.routes.planes import PLANES_HEADER, planes_router
from triton_sam.service.routes.preview import preview_router
from triton_sam.service.routes.sam_service import sam_service_router
from triton_sam.service.routes.samples import samples_router
from triton_sam.service.routes.segment import segment_router
from triton_sam.service.routes.video_live import video_live_router
from triton_sam.service.routes.video_objects import video_objects_router
from triton_sam.service.routes.videos import videos_router
from triton_sam.service.shared_state import SharedState
from triton_sam.service.siblings import Siblings
from triton_sam.service.telemetry.metrics import BodyBytesCollector, ServiceMetrics
from triton_sam.service.telemetry.middleware import TelemetryMiddleware
from triton_sam.service.telemetry.spans import Tracing
from triton_sam.service.telemetry.supervisor_metrics import SupervisorCollector
from triton_sam.service.telemetry.tracing import tracing_of
from triton_sam.service.upstream import Upstream
from triton_sam.service.videos import video_schemas
from triton_sam.service.videos.films import Films
from triton_sam.service.videos.peers import VideoForwarding, listening_to_peers
from triton_sam.settings import Settings

#: Images whose pixels the service itself decodes at a time: the largest takes about a gigabyte of memory, and seconds.
_MAX_DECODING = 2

#: Of a form around a video.
_FORM_BYTES = 64 * 1024

_DESCRIPTION = """Segment Anything over HTTP: send an image once, then segment it with points, boxes or masks.

For live previews while the mouse moves there is a WebSocket, `/v1/hover`. A message has the fields of `/v1/segment`
without `session_id` and `latest_wins`, and an `id` that you choose; the newest message supersedes older ones. Responses
are `{"id", "result"}`, `{"id", "superseded": true}` or `{"id", "error"}`.

`/v1/everything` finds everything in an image, with progress as server-sent events where asked for.

`/v1/ground` asks a vision-language model where something is, and returns its mask.

`/v1/videos` tracks objects through videos: send a file, prompt objects, stream the propagation.

OpenAI's clients can use `/v1/chat/completions` with the models of `/v1/models`.

Every error is `{"error": {"code", "message", "type", "param"}}`."""


def create_app(
    upstream: Upstream, settings: Settings, tracing: Tracing | None = None, shared: SharedState | None = None
) -> FastAPI:
    """The application in front of one server; raises SetupError if the tokens file cannot be used.

    Args:
        tracing: used instead of the settings', for tests.
        shared: what the processes of the service share; None for a service of one process.
    """
    tracing = tracing or tracing_of(settings)
    shared = shared or SharedState()
    gateway = Gateway(upstream, settings, tracing, shared.siblings)
    metrics = ServiceMetrics(shared.metrics_folder)
    metrics.register(SupervisorCollector(upstream.status))
    access = AccessControl(settings, metrics.callers, buckets=shared.buckets)
    capacity = _capacity(settings, shared)
    metrics.register(BodyBytesCollector(lambda: capacity.bytes_held))
    decoding = DecodingSlots(_MAX_DECODING, shared.tally)
    films = Films(gateway, settings, metrics, shared.tally, shared.siblings.number)
    of_videos = (videos_router(films, decoding), video_objects_router(films, metrics))
    routers = (
        segment_router(gateway, capacity),
        everything_router(gateway, capacity),
        hover_router(gateway, metrics, access, capacity),
        completions.chat_router(gateway, metrics),
        ground_router(gateway, metrics, capacity),
        preview_router(settings, decoding),
        planes_router(settings, decoding),
        sam_service_router(gateway, shared.embedding_models),
        info_router(gateway, metrics, access),
        video_live_router(films, metrics, access, capacity),
        *of_videos,
        samples_router(photograph_folder()),
        page_router(),
    )

    app = FastAPIOffline(  # plain FastAPI's documentation pages load scripts from the internet
        title="triton-sam",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=_lifespan(gateway, films, _plain_app(of_videos), shared.siblings),
        middleware=[
            *_middleware(settings, metrics, access, capacity, tracing, routers),
            Middleware(VideoForwarding, siblings=shared.siblings),
        ],
        static_url=DOCS_FILES,
    )
    # For uvicorn_config, which limits connections and sheds load before a request reaches the application.
    app.state.settings = settings
    app.state.tally = shared.tally
    app.state.load_shedder = LoadShedder(capacity, metrics)
    error_responses.install(app)
    for router in routers:
        app.include_router(router)
    _describe_bodies(app, needs_token=access.needs_token)
    return app


def _lifespan(
    gateway: Gateway, films: Films, for_peers: FastAPI, siblings: Siblings
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with gateway.opened(), films.opened(), listening_to_peers(for_peers, siblings):
                yield
        finally:
            await gateway.tracing.close()

    return lifespan


def _plain_app(routers: Sequence[APIRouter]) -> FastAPI:
    """The routes alone, for requests that another process has admitted."""
    app = FastAPI(openapi_url=None)
    error_responses.install(app)
    for router in routers:
        app.include_router(router)
    return app


def _capacity(settings: Settings, shared: SharedState) -> ServiceCapacity:
    return ServiceCapacity(
        settings.service_requests,
        # Chat, grounding and everything may take minutes: slots stay free for clicks.
        {
            completions.COMPLETIONS: max(1, settings.service_requests // 2),
            EVERYTHING: max(1, settings.service_requests // 4),
            GROUND: max(1, settings.service_requests // 4),
            LONG_VIDEOS: max(1, settings.service_requests // 4),
        },
        # The largest allowed body must fit while no other request is in progress.
        max_bytes=max(settings.service_body_bytes, settings.max_body_bytes),
        max_sockets=settings.service_sockets,
        tally=shared.tally,
    )


def _describe_bodies(app: FastAPI, *, needs_token: bool) -> None:
    """Adds the request bodies, which the routes parse themselves, and the API token to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            components = document.setdefault("components", {})
            for part in (schemas, everything_schemas, ground_schemas, chat_schemas, video_schemas):
                components.setdefault("schemas", {}).update(part.request_schemas())
            if needs_token:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _middleware(
    settings: Settings,
    metrics: ServiceMetrics,
    access: AccessControl,
    capacity: ServiceCapacity,
    tracing: Tracing,
    routers: tuple[APIRouter, ...],
) -> list[Middleware]:
    """From outermost to innermost, so that every error response has its request id and CORS headers."""
    paths = {str(getattr(route, "path_format", "")) for router in routers for route in router.routes}
    layers = [Middleware(SingleSlashes)]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "X-Request-ID",
                    "X-Image-Key",
                    "X-Session-ID",
                    "traceparent",
                    "tracestate",
                ],
                expose_headers=["X-Request-ID", "Retry-After", "Cancelled-By-Client", "X-Image-Size", PLANES_HEADER],
            )
        )
    layers.append(Middleware(TelemetryMiddleware, metrics=metrics, routes=frozenset(paths), tracing=tracing))
    # Outside everything that may refuse before the body has arrived: it makes sure that the client can read it.
    layers.append(
        Middleware(
            RequestLimits,
            max_bytes=settings.max_body_bytes,
            body_seconds=settings.body_seconds,
            seconds=settings.service_seconds,
            seconds_at={
                completions.COMPLETIONS: settings.vlm_seconds + completions.TIMEOUT_RESPONSE_SECONDS,
                GROUND: settings.vlm_seconds + settings.service_seconds,
                EVERYTHING: math.inf,  # its time limit counts from the last progress
            },
            upload_bytes=settings.video_upload_bytes + _FORM_BYTES,
        )
    )
    layers.append(Middleware(AuthenticationMiddleware, access=access))
    layers.append(Middleware(ConcurrencyMiddleware, capacity=capacity))
    return layers
