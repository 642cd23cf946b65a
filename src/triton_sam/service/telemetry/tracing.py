"""Whether requests are traced, and where traces go. OpenTelemetry is imported only where they are wanted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from triton_sam.errors import SetupError
from triton_sam.service.telemetry.spans import NO_TRACING, Tracing
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_ENDPOINT, _TRACES_ENDPOINT = ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"
_INSTALL = "pip install 'triton-sam[tracing]'"


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
        from triton_sam.service.telemetry.otlp import otlp_tracing
    except ImportError as error:
        if settings.tracing:
            raise SetupError(f"TRITON_SAM_TRACING is set and {error.name} is not installed: {_INSTALL}") from None
        return None
    return otlp_tracing


def _is_wanted(settings: Settings, environment: Mapping[str, str] | None) -> bool:
    variables = os.environ if environment is None else environment
    is_named = any(variables.get(name) for name in ENDPOINTS)
    return variables.get("OTEL_SDK_DISABLED", "").lower() != "true" and (settings.tracing or is_named)
