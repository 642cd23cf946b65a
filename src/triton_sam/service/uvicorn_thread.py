"""Runs the application with uvicorn on a thread of this process."""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
from types import TracebackType

import uvicorn
from fastapi import FastAPI

from triton_sam.errors import ServerError
from triton_sam.service.admission.connections import ConnectionLimit, http_protocol, socket_protocol
from triton_sam.service.admission.tls import tls_files

#: A hover message is a few hundred bytes; the largest that makes sense carries a mask_input.
_MAX_MESSAGE_BYTES = 1024 * 1024
_KEEP_ALIVE_SECONDS = 20
#: Grace period for requests in progress: an encode on a laptop takes seconds, and others may be queued before it.
#: Triton stops after that, and all must end before a service manager kills the process.
SHUTDOWN_SECONDS = 10


def _within_file_limit(connections: int) -> int:
    """At most half of the file descriptors of this process: the supervisor and Triton's logs need some too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files == resource.RLIM_INFINITY else max(1, min(connections, files // 2))


def uvicorn_config(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves an application; raises SetupError if the certificate in the settings cannot be used."""
    files = tls_files(app.state.settings)
    connections = app.state.settings.service_connections
    limit = ConnectionLimit(_within_file_limit(connections), connections, app.state.tally)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        # Not uvloop: it accepts one new connection in each turn of the loop. Under load turns are long, and new
        # connections, health checks among them, would wait for seconds (docs/adr/0015).
        loop="asyncio",
        http=http_protocol(limit, app.state.load_shedder),
        ws=socket_protocol(limit),
        ws_max_size=_MAX_MESSAGE_BYTES,
        lifespan="on",
        ssl_certfile=None if files is None else files[0],
        ssl_keyfile=None if files is None else files[1],
        log_config=None,  # its messages use the logging of this process
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def freeze_garbage() -> None:
    """These objects are permanent. Without freeze, a full garbage collection would block for a tenth of a second."""
    gc.collect()
    gc.freeze()


class ServiceThread:
    """Context manager that serves an application of :func:`triton_sam.service.app.create_app` while it is open."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Raises SetupError if the certificate in the settings cannot be used."""
        self._server = uvicorn.Server(uvicorn_config(app, host, port))
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):  # uvicorn raises it if it cannot listen; __enter__ reports that
            self._server.run()

    def __enter__(self) -> ServiceThread:
        """Returns when the service listens; raises ServerError if it cannot."""
        self._thread.start()
        while not self._server.started:
            self._thread.join(timeout=0.01)
            if not self._thread.is_alive():
                config = self._server.config
                raise ServerError(
                    f"the service cannot listen on {config.host} port {config.port}: choose another with --service-port"
                )
        freeze_garbage()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=SHUTDOWN_SECONDS + 5)
        gc.unfreeze()
