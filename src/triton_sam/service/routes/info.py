"""What the supervisor knows, over HTTP: Triton's own health endpoints stay green when a model's process is dead."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any

import anyio
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from triton_sam.errors import Unavailable
from triton_sam.service import schemas
from triton_sam.service.admission import access
from triton_sam.service.admission.guard import Guard
from triton_sam.service.gateway import Gateway
from triton_sam.service.telemetry.metrics import ServiceMetrics

_METRICS_SECONDS = 5.0
_METRICS_BYTES = 16 * 1024 * 1024
#: How old Triton's metrics may be. They are told to however many ask, also when the service is full.
_METRICS_AGE_SECONDS = 0.5
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def info_router(gateway: Gateway, metrics: ServiceMetrics, guard: Guard) -> APIRouter:
    """``/health``, ``/models``, ``/v1/limits``, ``/metrics`` and what Triton itself does not have under ``/v2``."""
    router = APIRouter(tags=["about the server"])
    triton_metrics = _TritonMetrics(gateway.backend.metrics_url)

    @router.get(
        "/health",
        summary="Whether masks are served now",
        response_model=schemas.Health,
        responses={
            **schemas.refusals(),
            503: {"model": schemas.Health, "description": "Masks are not served now; the reason is told"},
        },
    )
    async def health(request: Request) -> JSONResponse:
        """200 while masks are served, 503 otherwise, with the reason; the versions, and what hinders a newer one.

        Where the service has a token, whoever does not send it learns the state only.
        """
        known = dict(gateway.backend.status())
        shown = known if guard.knows(access.bearer(request.headers)) else {"state": known["state"]}
        return JSONResponse(shown, status_code=200 if known["state"] == "ready" else 503)

    @router.get("/models", summary="What is served", responses=schemas.refusals())
    async def models() -> list[schemas.ModelRow]:
        return await _rows(gateway)

    @router.get("/v2/models", summary="What is served, where Triton would have it", responses=schemas.refusals())
    async def v2_models() -> list[schemas.ModelRow]:
        return await _rows(gateway)

    @router.get("/v1/limits", summary="What one request may have", responses=schemas.refusals())
    async def limits() -> schemas.Limits:
        return schemas.Limits.model_validate(gateway.settings, from_attributes=True)

    @router.get(
        access.METRICS,
        summary="The service's own metrics",
        response_class=Response,
        responses={**schemas.answer_of("For Prometheus", "text/plain"), **schemas.refusals()},
    )
    async def service_metrics() -> Response:
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get(
        "/v2/metrics",
        summary="Triton's metrics",
        response_class=Response,
        responses={**schemas.answer_of("For Prometheus", "text/plain"), **schemas.refusals(503)},
    )
    async def v2_metrics() -> Response:
        return Response(await triton_metrics.text(), headers={"Content-Type": _PLAIN})

    return router


async def _rows(gateway: Gateway) -> list[Any]:
    segmenters = await gateway.models.all()
    default = gateway.models.choose(segmenters, None).name if segmenters else None
    encoders = await gateway.encoders.of(segmenters)
    return [
        schemas.ModelRow(
            name=name,
            id=spec.id,
            family=spec.family,
            title=spec.title,
            licence=spec.licence,
            prompts=sorted(spec.prompts),
            side=spec.side,
            default=name == default,
            encoder=encoders[name],
        )
        for name, spec in segmenters.items()
    ]


class _TritonMetrics:
    """Triton's metrics, fetched by one caller at a time and shared by all who ask at that moment."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = anyio.Lock()
        self._answer: bytes | Unavailable = b""
        self._fetched: float | None = None

    async def text(self) -> bytes:
        """As fresh as a caller needs them; Unavailable where they cannot be had."""
        async with self._lock:
            if self._fetched is None or time.monotonic() - self._fetched > _METRICS_AGE_SECONDS:
                try:
                    self._answer = await run_in_threadpool(_fetch, self._url)
                except Unavailable as failure:  # shared too: those who wait must not try one after the other
                    self._answer = failure
                self._fetched = time.monotonic()
        if isinstance(self._answer, Unavailable):
            raise Unavailable(str(self._answer))
        return self._answer


def _fetch(url: str | None) -> bytes:
    if url is None:
        raise Unavailable("the model server's metrics cannot be had here: use /metrics for the service's own")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # they are on this machine or beside it
    try:
        with opener.open(url, timeout=_METRICS_SECONDS) as answer:
            return bytes(answer.read(_METRICS_BYTES))
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException):
        raise Unavailable("the model server's metrics cannot be had now: try again in a moment") from None
