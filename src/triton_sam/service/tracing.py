"""Traces of requests, where somebody collects them. Without that nothing of OpenTelemetry is imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from triton_sam.errors import SetupError
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_ENDPOINT, _TRACES_ENDPOINT = ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"
_INSTALL = "pip install 'triton-sam[tracing]'"


class Span:
    """Something that takes time. This one is none: what is not traced costs a call that does nothing."""

    __slots__ = ()

    def call(self, model: str) -> Span:
        """The child for one call of Triton; to be ended."""
        return self

    def headers(self) -> dict[str, str]:
        """What whoever is called needs to put its own spans below this one."""
        return {}

    def end_call(self, result_json: bytes | None = None, failure: str | None = None) -> None:
        """
        Args:
            result_json: a segmenter's answer, whose ``timings_ms`` become children.
            failure: the kind of error in place of an answer.
        """

    def end_request(self, status: int, caller: str) -> None: ...


NO_SPAN = Span()


class Tracing:
    """Makes spans; this one makes none."""

    def request(self, method: str, route: str, headers: Mapping[str, str], request_id: str) -> Span:
        """The span of a request, below the one that its header ``traceparent`` names."""
        return NO_SPAN

    async def close(self) -> None:
        """Sends what is still here, for a few seconds at most."""


NO_TRACING = Tracing()


def tracing_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Tracing:
    """As the settings and OpenTelemetry's own variables say.

    SetupError where the settings ask for traces and the packages are missing; a word in the log where only the
    variables do, which may be there for other programs.
    """
    start = _starter(settings, environment)
    if start is not None:
        return start()
    if _is_wanted(settings, environment):
        log.warning("there are no traces, although %s is set: %s", " or ".join(ENDPOINTS), _INSTALL)
    return NO_TRACING


def check_tracing(settings: Settings, environment: Mapping[str, str] | None = None) -> None:
    """The SetupError of :func:`tracing_of`; starts nothing."""
    if settings.tracing:
        _starter(settings, environment)


def traces_url(settings: Settings, environment: Mapping[str, str] | None = None) -> str | None:
    """Where traces go by OTLP over HTTP, as OpenTelemetry's variables have it; None where there are none."""
    if _starter(settings, environment) is None:
        return None
    variables = os.environ if environment is None else environment
    every_kind = variables.get(_ENDPOINT) or _DEFAULT_ENDPOINT
    return variables.get(_TRACES_ENDPOINT) or f"{every_kind.rstrip('/')}/v1/traces"


def _starter(settings: Settings, environment: Mapping[str, str] | None) -> Callable[[], Tracing] | None:
    if not _is_wanted(settings, environment):
        return None
    try:
        from triton_sam.service.otlp import otlp_tracing
    except ImportError as error:
        if settings.tracing:
            raise SetupError(f"TRITON_SAM_TRACING is set and {error.name} is not installed: {_INSTALL}") from None
        return None
    return otlp_tracing


def _is_wanted(settings: Settings, environment: Mapping[str, str] | None) -> bool:
    variables = os.environ if environment is None else environment
    is_named = any(variables.get(name) for name in ENDPOINTS)
    return variables.get("OTEL_SDK_DISABLED", "").lower() != "true" and (settings.tracing or is_named)
