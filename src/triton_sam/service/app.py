"""The front door: what comes from a network is checked here, before Triton sees it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from triton_sam import __version__
from triton_sam.core.samples import photograph_folder
from triton_sam.service import faults, schemas
from triton_sam.service.admission.access import DOCS_FILES, Gate, SingleSlashes
from triton_sam.service.admission.door import Door
from triton_sam.service.admission.guard import Guard
from triton_sam.service.admission.limits import Admission, RequestLimits
from triton_sam.service.admission.places import Places
from triton_sam.service.backend import Backend
from triton_sam.service.chat import completions
from triton_sam.service.chat import schemas as chat_schemas
from triton_sam.service.gateway import Gateway
from triton_sam.service.routes.hover import hover_router
from triton_sam.service.routes.info import info_router
from triton_sam.service.routes.page import page_router
from triton_sam.service.routes.preview import preview_router
from triton_sam.service.routes.sam_service import sam_service_router
from triton_sam.service.routes.samples import samples_router
from triton_sam.service.routes.segment import segment_router
from triton_sam.service.telemetry.metrics import ServiceMetrics, Telemetry
from triton_sam.service.telemetry.spans import Tracing
from triton_sam.service.telemetry.supervision import SupervisorFigures
from triton_sam.service.telemetry.tracing import tracing_of
from triton_sam.settings import Settings

_DESCRIPTION = """Segment Anything over HTTP: send an image once, then point at things.

For a mouse that moves there is a WebSocket, `/v1/hover`: messages are the fields of `/v1/segment` without
`session_id` and `latest_wins`, and with an `id` of yours; the newest wins. Answers are `{"id", "result"}`,
`{"id", "superseded": true}` or `{"id", "error"}`.

For OpenAI's clients there is `/v1/chat/completions`, with the models of `/v1/models`.

Every refusal is `{"error": {"code", "message", "type", "param"}}`."""


def create_app(backend: Backend, settings: Settings, tracing: Tracing | None = None) -> FastAPI:
    """The application for one server; SetupError where its file of tokens cannot be used.

    Args:
        tracing: in place of what the settings say, for tests.
    """
    tracing = tracing or tracing_of(settings)
    gateway = Gateway(backend, settings, tracing)
    metrics = ServiceMetrics()
    metrics.registry.register(SupervisorFigures(backend.status))
    guard = Guard(settings, metrics.callers)
    # A question may wait minutes for its model: however many do, they keep no segmenting out.
    places = Places(
        settings.service_requests,
        {completions.COMPLETIONS: max(1, settings.service_requests // 2)},
        # One that is allowed must find room at least when nobody else sends anything.
        most_bytes=max(settings.service_body_bytes, settings.max_body_bytes),
    )
    metrics.body_bytes.set_function(lambda: places.bytes_held)
    routers = (
        segment_router(gateway),
        hover_router(gateway, metrics, guard),
        completions.chat_router(gateway, metrics),
        preview_router(settings),
        sam_service_router(gateway),
        info_router(gateway, metrics, guard),
        samples_router(photograph_folder()),
        page_router(),
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with gateway.opened():
                yield
        finally:
            await tracing.close()

    app = FastAPIOffline(  # the usual one has its pages load scripts from the internet
        title="triton-sam",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        middleware=_middleware(settings, metrics, guard, places, tracing, routers),
        static_url=DOCS_FILES,
    )
    app.state.settings = settings  # whoever listens for it has limits of its own,
    app.state.door = Door(places, metrics)  # and refuses who need not come so far
    faults.install(app)
    for router in routers:
        app.include_router(router)
    _describe_bodies(app, needs_token=guard.needs_token)
    return app


def _describe_bodies(app: FastAPI, *, needs_token: bool) -> None:
    """Adds the bodies that are read by hand, and the token, to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas.request_schemas() | chat_schemas.request_schemas())
            if needs_token:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _middleware(
    settings: Settings,
    metrics: ServiceMetrics,
    guard: Guard,
    places: Places,
    tracing: Tracing,
    routers: tuple[APIRouter, ...],
) -> list[Middleware]:
    """From the outside in: even a refusal has its request id and may be read by an allowed web page."""
    paths = {str(getattr(route, "path_format", "")) for router in routers for route in router.routes}
    layers = [Middleware(SingleSlashes)]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "X-Request-ID",
                    "X-Image-Key",
                    "X-Session-ID",
                    "traceparent",
                    "tracestate",
                ],
                expose_headers=["X-Request-ID", "Retry-After", "Cancelled-By-Client", "X-Image-Size"],
            )
        )
    layers.append(Middleware(Telemetry, metrics=metrics, routes=frozenset(paths), tracing=tracing))
    # Around all that may refuse before a body has come: it sees to it that the refusal is read.
    layers.append(
        Middleware(
            RequestLimits,
            max_bytes=settings.max_body_bytes,
            body_seconds=settings.body_seconds,
            seconds=settings.service_seconds,
            seconds_at={completions.COMPLETIONS: settings.vlm_seconds + completions.FAREWELL_SECONDS},
        )
    )
    layers.append(Middleware(Gate, guard=guard))
    layers.append(Middleware(Admission, places=places))
    return layers
