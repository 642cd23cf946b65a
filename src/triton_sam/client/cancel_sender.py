"""Sends cancels in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.session_book import Destination
from triton_sam.client.wire import Call
from triton_sam.errors import TritonSamError

log = logging.getLogger(__name__)


class CancelSender:
    """Sends cancels to the server without waiting for the responses. Used on one event loop only.

    By default a request in flight is not cancelled natively, because that can end an older server (docs/adr/0008).
    """

    def __init__(self, transport: AsyncTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The cancels that have no response yet."""
        return list(self._tasks)

    def send(self, destination: Destination, server_session: str, which: dict[str, int]) -> None:
        """Sends a cancel message.

        Args:
            server_session: the session's name on the server.
            which: ``before=N`` for all requests with a smaller number, ``only=N`` for one.
        """
        self._start(self._post(destination.cancel_call({"session_id": server_session, **which})))

    def cancel_natively(self, task: asyncio.Task[None]) -> None:
        """Cancels the task of a request in flight, if the transport and the server support that."""
        self._start(self._cancel_if_supported(task))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # asyncio itself holds running tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def _post(self, call: Call) -> None:
        try:
            await self._transport.infer(call)
        except TritonSamError as error:
            # The callers of the requests themselves learn of a lost server; no caller waits for a cancel.
            log.debug("a cancel did not reach the server: %s", error)

    async def _cancel_if_supported(self, task: asyncio.Task[None]) -> None:
        if await self._transport.can_cancel_natively():
            task.cancel()
