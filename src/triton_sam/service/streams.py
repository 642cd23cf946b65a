"""Streaming responses from Triton: buffering between source and reader, early end, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from triton_sam.client.dispatch import Outputs
from triton_sam.errors import InternalError, TritonSamError

log = logging.getLogger(__name__)

_FINISH_SECONDS = 5.0


class ResponseStream:
    """Reads a streaming response in a task of its own, until its end or until it is closed. Belongs to the event loop.

    After the last piece, the source is left to finish by itself: on older servers a cancel that meets the end of its
    request can crash the whole server (:mod:`triton_sam.client.async_transport`).

    Only that task closes the source: the reader's own task may be cancelled at any time, and could then not send the
    cancel to the server.
    """

    def __init__(
        self,
        source: AsyncGenerator[Outputs, None],
        is_last: Callable[[Outputs], bool],
        public: Callable[[TritonSamError], TritonSamError],
    ) -> None:
        """
        Args:
            is_last: whether a piece is the last one.
            public: converts an error of the source to one without internals.
        """
        self._source = source
        self._is_last = is_last
        self._public = public
        self._is_closed = self._is_complete = False
        # Unbounded: an answer has a few kilobytes, and a slow reader must not make the GPU wait.
        self._pieces: asyncio.Queue[Outputs | TritonSamError | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._read())
        """Ends when the source is closed."""

    @property
    def is_over(self) -> bool:
        """Whether the last piece has come, or the stream is closed."""
        return self._is_complete or self._is_closed

    async def next(self) -> Outputs | None:
        """The next piece; None at the end; raises the error that ended the stream."""
        piece = await self._pieces.get()
        if isinstance(piece, TritonSamError):
            raise piece
        return piece

    def end(self, error: TritonSamError) -> None:
        """Ends the stream: the reader gets this error after the pieces so far, and the server stops computing."""
        self._pieces.put_nowait(error)
        self.close()

    def close(self) -> None:
        """Ends the stream without an error, when its reader is done."""
        if not self._is_closed:  # a second cancel would interrupt the closing of the source
            self._is_closed = True
            if self._is_complete:
                asyncio.get_running_loop().call_later(_FINISH_SECONDS, self.task.cancel)
            else:
                self.task.cancel()

    def when_closed(self, action: Callable[[], object]) -> None:
        """Calls ``action`` when the source is closed."""
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
            log.exception("unexpected exception in a stream")
            end = InternalError("the service failed on this request: see its log")
        self._pieces.put_nowait(end)
