"""The pieces of one answer on their way from Triton to whoever reads them, and everything that may end them early."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from triton_sam.client.dispatch import Outputs
from triton_sam.errors import InternalError, TritonSamError

log = logging.getLogger(__name__)

_RUN_OUT_SECONDS = 5.0


class PieceStream:
    """A task reads the source, and is told to stop by its reader or by others. Belongs to the event loop.

    After its last piece an answer is complete, and the source is left to run out by itself: on older servers a cancel
    that meets the end of its request can end the whole server (:mod:`triton_sam.client.async_transport`).

    The source is closed by that task and nobody else: a reader's own task may be cancelled at any time, and then has
    no time left to tell a server anything.
    """

    def __init__(
        self,
        source: AsyncGenerator[Outputs, None],
        is_last: Callable[[Outputs], bool],
        public: Callable[[TritonSamError], TritonSamError],
    ) -> None:
        """
        Args:
            is_last: whether a piece says that nothing comes after it.
            public: what a reader may see of an error of the source.
        """
        self._source = source
        self._is_last = is_last
        self._public = public
        self._is_left = self._is_complete = False
        # As long as an answer at most, which has a few kilobytes: a reader that is slow keeps no GPU waiting.
        self._pieces: asyncio.Queue[Outputs | TritonSamError | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._read())
        """Ends when the source is closed."""

    async def next(self) -> Outputs | None:
        """The next piece; None at the end; raises what ended it."""
        piece = await self._pieces.get()
        if isinstance(piece, TritonSamError):
            raise piece
        return piece

    def end(self, error: TritonSamError) -> None:
        """The reader gets this after what has come already; nothing more is computed."""
        self._pieces.put_nowait(error)
        self.close()

    def close(self) -> None:
        """Nobody reads it any more."""
        if not self._is_left:  # a second time would meet the source in the middle of its own closing
            self._is_left = True
            if self._is_complete:
                asyncio.get_running_loop().call_later(_RUN_OUT_SECONDS, self.task.cancel)
            else:
                self.task.cancel()

    def when_closed(self, action: Callable[[], object]) -> None:
        """Has something done when the source is closed."""
        self.task.add_done_callback(lambda _: action())

    def _take(self, piece: Outputs) -> None:
        if not self._is_complete:
            self._pieces.put_nowait(piece)
            if self._is_last(piece):
                self._is_complete = True
                self._pieces.put_nowait(None)

    async def _read(self) -> None:
        end: TritonSamError | None = None
        try:
            async with contextlib.aclosing(self._source) as source:
                async for piece in source:
                    self._take(piece)
        except TritonSamError as error:
            end = self._public(error)
        except Exception:
            log.exception("a stream failed in a way that the transport does not know")
            end = InternalError("the service failed on this request: its log has the reason")
        self._pieces.put_nowait(end)
