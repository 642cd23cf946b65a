"""Health, served models, limits and metrics.

Health comes from the supervisor: Triton's own health endpoints stay green when a model's process is dead.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any

import anyio
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from triton_sam.errors import Unavailable
from triton_sam.service import schemas
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.admission.authentication import bearer_token
from triton_sam.service.admission.paths import METRICS
from triton_sam.service.error_responses import HEADERS
from triton_sam.service.gateway import Gateway
from triton_sam.service.telemetry.metrics import ServiceMetrics

_METRICS_SECONDS = 5.0
_METRICS_BYTES = 16 * 1024 * 1024
#: How old Triton's metrics may be. Any number of clients may request them, also when the service is full.
_METRICS_AGE_SECONDS = 0.5
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def info_router(gateway: Gateway, metrics: ServiceMetrics, access: AccessControl) -> APIRouter:
    """``/health``, ``/models``, ``/v1/limits``, ``/metrics``, and ``/v2/models`` and ``/v2/metrics``."""
    router = APIRouter(tags=["about the server"])
    triton_metrics = _TritonMetrics(gateway.upstream.metrics_url)

    @router.get(
        "/health",
        summary="Whether masks are served now",
        response_model=schemas.Health,
        responses={
            **schemas.error_responses(),
            503: {"model": schemas.Health, "description": "Masks are not served now; the body has the reason"},
        },
    )
    async def health(request: Request) -> JSONResponse:
        """200 while masks are served, otherwise 503 with the reason. Also the versions, and why no newer one is used.

        `devices` has those of each model: state, requests in flight, and whether the engine is at full speed yet.

        If the service has API tokens, a request without one gets the state only.
        """
        status = dict(gateway.upstream.status())
        visible = status if access.accepts(bearer_token(request.headers)) else {"state": status["state"]}
        if status["state"] == "ready":
            return JSONResponse(visible)
        return JSONResponse(visible, 503, HEADERS[503])

    @router.get("/models", summary="The served segmenters", responses=schemas.error_responses())
    async def models() -> list[schemas.ModelRow]:
        return await _rows(gateway)

    @router.get("/v2/models", summary="The served segmenters, under Triton's path", responses=schemas.error_responses())
    async def v2_models() -> list[schemas.ModelRow]:
        return await _rows(gateway)

    @router.get("/v1/limits", summary="The limits of one request", responses=schemas.error_responses())
    async def limits() -> schemas.Limits:
        return schemas.Limits.model_validate(gateway.settings, from_attributes=True)

    @router.get(
        METRICS,
        summary="The service's own metrics",
        response_class=Response,
        responses={**schemas.response_of("For Prometheus", "text/plain"), **schemas.error_responses()},
    )
    async def service_metrics() -> Response:
        text = await run_in_threadpool(metrics.text) if metrics.is_shared else metrics.text()
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get(
        "/v2/metrics",
        summary="Triton's metrics",
        response_class=Response,
        responses={**schemas.response_of("For Prometheus", "text/plain"), **schemas.error_responses(503)},
    )
    async def v2_metrics() -> Response:
        return Response(await triton_metrics.text(), headers={"Content-Type": _PLAIN})

    return router


async def _rows(gateway: Gateway) -> list[Any]:
    segmenters = await gateway.segmenters.all()
    default = gateway.segmenters.choose(segmenters, None).name if segmenters else None
    precisions = await gateway.encoder_precisions.of(segmenters)
    return [
        schemas.ModelRow(
            name=name,
            id=spec.id,
            family=spec.family,
            title=spec.title,
            licence=spec.licence,
            prompts=sorted(spec.prompts),
            side=spec.side,
            video=spec.memory is not None,
            default=name == default,
            encoder=precisions[name],
        )
        for name, spec in segmenters.items()
    ]


class _TritonMetrics:
    """Triton's metrics, fetched once and shared by all requests of the same moment."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = anyio.Lock()
        self._result: bytes | Unavailable = b""
        self._fetched: float | None = None

    async def text(self) -> bytes:
        """The metrics, half a second old at most; raises Unavailable if they cannot be fetched."""
        async with self._lock:
            if self._fetched is None or time.monotonic() - self._fetched > _METRICS_AGE_SECONDS:
                try:
                    self._result = await run_in_threadpool(_fetch, self._url)
                except Unavailable as failure:  # shared too: waiting requests must not retry one after the other
                    self._result = failure
                self._fetched = time.monotonic()
        if isinstance(self._result, Unavailable):
            raise Unavailable(str(self._result))
        return self._result


def _fetch(url: str | None) -> bytes:
    if url is None:
        raise Unavailable("the model server's metrics are not available: use /metrics for the service's own")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # Triton is on this machine or near it
    try:
        with opener.open(url, timeout=_METRICS_SECONDS) as response:
            return bytes(response.read(_METRICS_BYTES))
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException):
        raise Unavailable("the model server's metrics cannot be fetched: try again in a moment") from None
