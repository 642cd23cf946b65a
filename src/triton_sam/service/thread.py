"""The application on a port, on a thread of this process."""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
from types import TracebackType

import uvicorn
from fastapi import FastAPI

from triton_sam.errors import ServerError
from triton_sam.service.admission.protocol import SocketProtocol, http_protocol
from triton_sam.service.admission.tls import tls_files

#: A hover message is a few hundred bytes; the largest that makes sense carries a mask_input.
_LARGEST_MESSAGE = 1024 * 1024
_KEEP_ALIVE_SECONDS = 20
#: For what is being answered: an encode on a laptop takes seconds, and others may wait before it. What Triton needs
#: to end comes after it, and all is over before those who stop services lose their patience.
_SHUTDOWN_SECONDS = 10


def _affordable(connections: int) -> int:
    """No more than half of the files that this process may open: the supervisor and Triton's logs need some too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files == resource.RLIM_INFINITY else max(1, min(connections, files // 2))


class ServiceThread:
    """Listens while the block is open. The application is one of :func:`triton_sam.service.app.create_app`."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """SetupError where the settings name a certificate that cannot be used."""
        files = tls_files(app.state.settings)
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            # Not uvloop: it takes one new connection in each turn of the loop. In a crowd turns are long, and those who
            # come wait for seconds, health checks among them (docs/adr/0015).
            loop="asyncio",
            http=http_protocol(_affordable(app.state.settings.service_connections), app.state.door),
            ws=SocketProtocol,
            ws_max_size=_LARGEST_MESSAGE,
            lifespan="on",
            ssl_certfile=None if files is None else files[0],
            ssl_keyfile=None if files is None else files[1],
            log_config=None,  # its lines go where all lines go, in their form
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
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
        # What is there by now stays: looking through it for garbage would stop everybody for a tenth of a second.
        gc.collect()
        gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=_SHUTDOWN_SECONDS + 5)
        gc.unfreeze()
