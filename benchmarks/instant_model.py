"""The service in front of a stand-in for Triton, in the same process: only the service itself is measured."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Call
from triton_sam.errors import QueueFull
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL
from triton_sam.service.app import create_app
from triton_sam.service.upstream import Upstream
from triton_sam.service.uvicorn_thread import ServiceThread
from triton_sam.settings import Settings

_KEY = "0" * 64
#: So long that a few requests at a time are served at a rate of which two cores can send ten times as many.
_SECONDS = 0.06


class InstantModel:
    """Answers every click after 60 ms; like a model's scheduler, it refuses what its queue cannot hold."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        mask = {"encoding": "bits", "width": 64, "height": 64, "data": "A" * 684, "score": 0.9}
        about = {"image_key": _KEY, "model": DEFAULT_MODEL, "timings_ms": {"total": 1.0}, "width": 64, "height": 64}
        text = json.dumps(about | {"mask": mask, "score": 0.9, "masks": [mask]}).encode()
        self._outputs = {"result_json": np.array([text], dtype=object)}

    async def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        if self._free <= 0:
            raise QueueFull("the queue is full: try again in a moment")
        self._free -= 1
        try:
            await asyncio.sleep(_SECONDS)
            return self._outputs
        finally:
            self._free += 1

    async def stream(self, call: Call) -> AsyncGenerator[Mapping[str, npt.NDArray[Any]], None]:
        yield self._outputs

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        pass


def serve_instant(port: int) -> None:
    """Serves on a port until SIGINT."""
    settings = Settings()
    upstream = Upstream(
        status=lambda: {"state": "ready"},
        segmenters=lambda: {"sam2": CATALOG[DEFAULT_MODEL]},
        transport=InstantModel(settings.click_queue),
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # before the service's thread, which inherits it
    with ServiceThread(create_app(upstream, settings), "127.0.0.1", port):
        signal.sigwait({signal.SIGINT})
