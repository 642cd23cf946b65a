"""A worker process: ``python -m triton_sam.backend.workers.process '{"server": ..., ...}'``.

It listens first, so that only one worker exists for a device, and loads the model then. It ends when the last Triton
process has said goodbye, or when tritonserver has ended.

``... process '{"server": ..., "model_id": ...}' spare`` imports what a worker needs and waits until it is told to be
one: see :mod:`triton_sam.backend.workers.spare`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.spare import Orders, gpus_in_use, listen
from triton_sam.engines.device_list import use_device
from triton_sam.logs import set_up_model_log
from triton_sam.server.host import process_alive, process_seconds
from triton_sam.server.worker_processes import SPARE
from triton_sam.settings import get_settings

if TYPE_CHECKING:
    from triton_sam.backend.workers.links import Links

#: Not ``__name__``, which is ``__main__`` here.
log = logging.getLogger("triton_sam.backend.workers.process")
_POLL_SECONDS = 0.5
#: After a Triton process was killed, the supervisor loads its model again within seconds: images stay cached so long.
_LINGER_SECONDS = 15.0
#: How long the Triton processes of a server that has ended may take to end by themselves.
_ORPHAN_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Serves until nobody needs it."""
    given = json.loads(arguments[0])
    begun = time.monotonic() - process_seconds()
    if SPARE in arguments[1:]:
        orders = Orders(given["server"])
        _import_all(given["model_id"])
        if opened := gpus_in_use():
            sys.stderr.write(f"no worker is kept in reserve: importing its modules opened {', '.join(opened)}\n")
            return 0
        options, listener, begun = orders.wait()
    else:
        options = WorkerOptions(**given)
        bound = listen(options)
        if bound is None:  # another one was quicker
            return 0
        listener = bound
    settings = use_device(options.device, get_settings())
    # Only now what takes seconds to import.
    from triton_sam.backend.workers.links import Links

    links = Links(options)
    threading.Thread(target=_accept, args=(listener, links), name="accept", daemon=True).start()
    set_up_model_log(options.model, settings)
    log.info("%s: worker %d begins to load after %.1f s", options.name, os.getpid(), time.monotonic() - begun)
    links.load(settings)
    if not links.ended.is_set():
        log.info("%s: worker %d serves after %.1f s", options.name, os.getpid(), time.monotonic() - begun)
    _wait_until_unneeded(options, links)
    links.wait_greeted()
    listener.close()  # a worker for a reloaded model may listen from here on
    if not process_alive(options.server):
        links.kill_peers(_ORPHAN_SECONDS)
    links.close()
    return 0


def _import_all(model_id: str) -> None:
    """Imports what a worker with the torch engine needs; no device is touched."""
    import triton_sam.backend.workers.links  # noqa: F401
    from triton_sam.engines.torch import loading
    from triton_sam.models.catalog import get_spec

    loading.import_all(get_spec(model_id))


def _accept(listener: socket.socket, links: Links) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        links.add(connection)


def _wait_until_unneeded(options: WorkerOptions, links: Links) -> None:
    alone_since: float | None = None
    while True:
        if links.ended.wait(_POLL_SECONDS) or not process_alive(options.server):
            return
        if links.count:
            alone_since = None
            continue
        alone_since = alone_since or time.monotonic()
        # Those who say goodbye after one was killed are reloaded with it.
        said_goodbye = links.farewells > 0 and not links.losses
        if said_goodbye or time.monotonic() - alone_since > _LINGER_SECONDS:
            return


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads of libraries must not delay the end: the device's memory is needed by the next worker.
    os._exit(status)
