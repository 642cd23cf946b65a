"""What the supervisor knows, over HTTP: Triton's own health endpoints stay green when a model's process is dead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from triton_sam import __version__
from triton_sam.errors import ServerError
from triton_sam.specs import ModelSpec


def create_app(
    status: Callable[[], Mapping[str, object]], segmenters: Callable[[], Mapping[str, ModelSpec]]
) -> FastAPI:
    """The application.

    Args:
        status: asks the supervisor.
        segmenters: Triton name -> catalogue row of what is served now.
    """
    app = FastAPI(title="triton-sam", version=__version__)

    @app.get("/health")
    def health() -> JSONResponse:
        """200 while masks are served, 503 otherwise, with the reason; the versions, and what hinders a newer one."""
        known = status()
        return JSONResponse(dict(known), status_code=200 if known["state"] == "ready" else 503)

    @app.get("/models")
    def models() -> list[dict[str, Any]]:
        """What is served."""
        return [
            {"name": name, "id": spec.id, "family": spec.family, "title": spec.title, "licence": spec.licence}
            for name, spec in segmenters().items()
        ]

    return app


class ServiceThread:
    """The application on a port, on a thread of this process."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):  # uvicorn's word for a port that it cannot have; __enter__ tells it
            self._server.run()

    def __enter__(self) -> ServiceThread:
        """Returns when it listens; ServerError where it cannot."""
        self._thread.start()
        while not self._server.started:
            self._thread.join(timeout=0.01)
            if not self._thread.is_alive():
                config = self._server.config
                raise ServerError(
                    f"the service cannot listen on port {config.port} of {config.host}: "
                    "choose another with --service-port"
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
