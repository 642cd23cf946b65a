"""Whose video is read or exported next: one of each caller at a time, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

import anyio

from triton_sam.errors import QueueFull
from triton_sam.service.admission.capacity import DecodingSlots, Tally

#: For the videos of others, and for one's own.
PATIENCE_SECONDS = 300.0


class Turns:
    """Processes that do one kind of work, over all processes of the service. Belongs to the event loop."""

    def __init__(self, work: str, slots: int, tally: Tally | None = None) -> None:
        """
        Args:
            work: for messages, ``read`` or ``exported``.
            slots: how many there are at a time.
        """
        self._work = work
        self._slots = DecodingSlots(slots, tally, f"videos {work}")
        self._of_callers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, caller: str) -> AsyncIterator[None]:
        """A caller's turn; QueueFull if it does not come in time."""
        # Before the slots: what waits for a video of the same caller must keep nobody else out.
        mine = self._of_callers.setdefault(caller, asyncio.Lock())
        async with contextlib.AsyncExitStack() as stack:
            with anyio.move_on_after(PATIENCE_SECONDS) as limit:
                await stack.enter_async_context(mine)
                await stack.enter_async_context(self._slots)
            if limit.cancelled_caught:
                raise QueueFull(f"too many videos are being {self._work} already: try again in a moment")
            yield
