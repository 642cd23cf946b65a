"""Steps of videos that are on their way to Triton: they fail at once when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

from triton_sam.client.wire import Outputs
from triton_sam.errors import TritonSamError


class VideoSteps:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[TritonSamError], str] = {}

    async def answer(self, model: str, work: Awaitable[Outputs]) -> Outputs:
        """The answer to a step; raises the error of :meth:`abort` if its model is lost before."""
        lost: asyncio.Future[TritonSamError] = asyncio.get_running_loop().create_future()
        self._waiting[lost] = model
        step: asyncio.Future[Outputs] = asyncio.ensure_future(work)
        both: tuple[asyncio.Future[Any], ...] = (step, lost)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not step.done():
                raise lost.result()
            return step.result()
        finally:
            del self._waiting[lost]
            step.cancel()

    def abort(self, error: TritonSamError, models: Collection[str]) -> None:
        """Fails the steps of these models."""
        for lost, model in self._waiting.items():
            if model in models and not lost.done():
                lost.set_result(error)
