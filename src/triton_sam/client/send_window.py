"""Limits the requests in flight, with fair turns between sessions."""

from __future__ import annotations

import asyncio

from triton_sam.client.session_book import SessionBook, Ticket
from triton_sam.core.fair_queue import FairQueue

#: Cancelled entries are removed from the queue when it is longer than this.
_LONG_QUEUE = 1024


class SendWindow:
    """A bounded number of requests in flight. Used on one event loop only.

    Sessions take turns here as they do on the server, which does not see the requests that wait in the client.
    """

    def __init__(self, book: SessionBook, loop: asyncio.AbstractEventLoop, max_in_flight: int) -> None:
        self._book = book
        self._loop = loop
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._waiting: FairQueue[tuple[Ticket, asyncio.Future[None]]] = FairQueue(_LONG_QUEUE)
        self._tidy_at = _LONG_QUEUE

    async def acquire(self, ticket: Ticket) -> None:
        """Waits until the request may be sent."""
        turn = self._loop.create_future()
        self._waiting.put((ticket, turn), ticket.session)
        self._grant_turns()
        if len(self._waiting) > self._tidy_at:
            self._waiting.take(lambda waiting: waiting[1].done())
            self._tidy_at = max(_LONG_QUEUE, 2 * len(self._waiting))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(ticket)
            raise

    def release(self, ticket: Ticket) -> None:
        """Ends :meth:`acquire`, when the request has its response or will not be sent."""
        self._in_flight -= 1
        self._book.mark_returned(ticket)
        self._grant_turns()

    def _grant_turns(self) -> None:
        """Lets waiting requests go while there is capacity."""
        held: list[tuple[Ticket, asyncio.Future[None]]] = []
        while self._waiting and self._in_flight < self._max_in_flight:
            ticket, turn = self._waiting.pop()
            if turn.done() or ticket.done:
                turn.cancel()
            elif self._book.mark_in_flight(ticket):
                self._in_flight += 1
                turn.set_result(None)
            else:
                held.append((ticket, turn))
        for ticket, turn in held:
            self._waiting.put((ticket, turn), ticket.session)
