"""A propagation through a video: results as they come, until its end or until somebody stops it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from triton_sam.errors import Conflict, InvalidInput
from triton_sam.video.found import VideoFrame

if TYPE_CHECKING:
    from triton_sam.service.videos.film import Film

FORWARD, BACKWARD, BOTH = "forward", "backward", "both"
DIRECTIONS = (FORWARD, BACKWARD, BOTH)
#: (first frame, how many frames beyond it, whether backward)
Pass = tuple[int, int | None, bool]


class Tracking:
    """One propagation; a video has one at a time. Belongs to the event loop.

    The next frame is only asked for when the last one was taken, so a slow reader slows the work down. What is stopped
    ends with the frame that is being computed, and one more that waits behind it.
    """

    def __init__(self, film: Film, passes: Sequence[Pass]) -> None:
        """Conflict if the video has a propagation already."""
        if film.tracking is not None:
            raise Conflict("the video is being propagated already: wait for its end, or cancel it")
        self._film, self._passes = film, passes
        self._stopped = asyncio.Event()
        self._ended = asyncio.Event()
        #: Frames so far.
        self.count = 0
        film.tracking = self

    @property
    def is_cancelled(self) -> bool:
        return self._stopped.is_set()

    def cancel(self) -> None:
        """Stops it; returns at once."""
        self._stopped.set()

    async def stop(self) -> None:
        """Stops it, and waits for its end."""
        self.cancel()
        await self._ended.wait()

    async def frames(self) -> AsyncGenerator[VideoFrame, None]:
        """The results; ends early when it is cancelled. To be closed."""
        film = self._film
        try:
            with film.used():
                state = await film.state()
                for first, most, reverse in self._passes:
                    async with aclosing(film.client.tracked(state, first, most, reverse=reverse)) as walk:
                        while (found := await self._next(walk)) is not None:
                            await film.keep(found, tracked=True)
                            self.count += 1
                            yield found
        finally:
            self.end()

    def end(self) -> None:
        """The video may be propagated again; also for one whose results were never asked for."""
        if not self._ended.is_set():
            self._ended.set()
            self._film.tracking = None

    async def _next(self, walk: AsyncGenerator[VideoFrame, None]) -> VideoFrame | None:
        """The next result; None at the end, and when it is cancelled."""
        if self.is_cancelled:
            return None
        step = asyncio.ensure_future(anext(walk, None))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([step, stopped], return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                return step.result()
            return None
        finally:
            stopped.cancel()
            if not step.done():
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await step


def passes_of(film: Film, direction: str, start: int | None, max_frames: int | None) -> list[Pass]:
    """The ways through a video.

    Args:
        start: the first frame; default the first prompted one, and backward the last prompted one.
        max_frames: of each way.
    """
    if direction not in DIRECTIONS:
        raise InvalidInput(f"direction is {', '.join(DIRECTIONS[:-1])} or {DIRECTIONS[-1]}, not {direction[:60]!r}")
    prompted = film.prompts()
    if not prompted:
        raise Conflict("nothing is prompted in this video: send points, a box or a mask of an object first")
    bare = [name for name, frames in prompted.items() if not frames]
    if bare:
        raise Conflict(f"object {bare[0]} has no prompt left: prompt it again, or delete it")
    frames = [frame for found in prompted.values() for frame in found]
    first = start
    if first is None:
        first = max(frames) if direction == BACKWARD else min(frames)
    film.check_frame(first)
    most = None if max_frames is None else max_frames - 1
    if direction == BACKWARD:
        return [(first, most, True)]
    forward: list[Pass] = [(first, most, False)]
    # The first frame itself is on the way forward already.
    back = None if most is None else most - 1
    return forward if direction == FORWARD or not first or most == 0 else [*forward, (first - 1, back, True)]
