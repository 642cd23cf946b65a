"""Tracing configuration: whether requests are traced, and the endpoint. Imports OpenTelemetry only if enabled."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.service.telemetry.spans import NO_TRACING, Tracing
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_ENDPOINT, _TRACES_ENDPOINT = ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"


def tracing_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Tracing:
    """The tracing that the settings and OpenTelemetry's environment variables ask for.

    If the packages are missing: SetupError if the settings enable tracing, and only a warning if the variables do,
    because they may be set for other programs.
    """
    start = _starter(settings, environment)
    if start is not None:
        return start()
    if _is_enabled(settings, environment):
        log.warning("tracing is off although %s is set: %s", " or ".join(ENDPOINTS), install_extra("tracing"))
    return NO_TRACING


def check_tracing(settings: Settings, environment: Mapping[str, str] | None = None) -> None:
    """Raises the SetupError of :func:`tracing_of` without starting anything."""
    if settings.tracing:
        _starter(settings, environment)


def traces_url(settings: Settings, environment: Mapping[str, str] | None = None) -> str | None:
    """The OTLP endpoint for traces, from OpenTelemetry's environment variables; None if tracing is off."""
    if _starter(settings, environment) is None:
        return None
    variables = os.environ if environment is None else environment
    base = variables.get(_ENDPOINT) or _DEFAULT_ENDPOINT
    return variables.get(_TRACES_ENDPOINT) or f"{base.rstrip('/')}/v1/traces"


def _starter(settings: Settings, environment: Mapping[str, str] | None) -> Callable[[], Tracing] | None:
    if not _is_enabled(settings, environment):
        return None
    try:
        from triton_sam.service.telemetry.otlp import otlp_tracing
    except ImportError as error:
        if settings.tracing:
            raise SetupError(
                f"TRITON_SAM_TRACING is set but {error.name} is not installed: {install_extra('tracing')}"
            ) from None
        return None
    return otlp_tracing


def _is_enabled(settings: Settings, environment: Mapping[str, str] | None) -> bool:
    variables = os.environ if environment is None else environment
    is_named = any(variables.get(name) for name in ENDPOINTS)
    return variables.get("OTEL_SDK_DISABLED", "").lower() != "true" and (settings.tracing or is_named)
