"""Sends requests that can be cancelled: numbered per session, limited in number, in fair turns.

Every request of a session carries a growing number. "Cancel all before number 50" then means the same to the server in
whatever order requests and cancels arrive over many connections, and a late hover cannot supersede a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from triton_sam.client.async_transport import AsyncTransport, last_message
from triton_sam.client.cancel_sender import CancelSender
from triton_sam.client.io_thread import running_loop
from triton_sam.client.send_window import SendWindow
from triton_sam.client.session_book import Destination, SessionBook, Ticket
from triton_sam.client.wire import Call, OnMessage, Outputs
from triton_sam.errors import Cancelled, DeadlineExceeded, InternalError, TritonSamError

__all__ = ["Dispatcher", "Outputs", "Send", "Ticket", "Work"]

log = logging.getLogger(__name__)


class Send(Protocol):
    """Sends a call of a request; with ``on_message`` it is followed, see :func:`.last_message`."""

    def __call__(self, call: Call, on_message: OnMessage | None = None) -> Awaitable[Outputs]: ...


#: What a request does: one call, or more if the first fails in a way that can be remedied.
Work = Callable[[Send], Awaitable[Outputs]]
_DRAIN_SECONDS = 5.0
_DROPPED = "the request was cancelled or superseded by a newer one of its session"


class Dispatcher:
    """Sends requests over one transport, on one event loop. Its methods may be called from any thread."""

    def __init__(
        self,
        transport: AsyncTransport,
        loop: asyncio.AbstractEventLoop,
        *,
        max_in_flight: int = 64,
        namespace: str | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """
        Args:
            max_in_flight: requests that are sent and have no response; more wait here, where cancelling them is free.
            namespace: of the sessions' names on the server; None: one of its own; empty: names are sent as they are.
            numbers: growing ones for the requests. Dispatchers that share a namespace must share their order.
        """
        self._transport = transport
        self._loop = loop
        # Users choose session names: two programs with a "session 1" must not cancel each other's requests.
        self._namespace = uuid.uuid4().hex[:12] if namespace is None else namespace
        self._book = SessionBook(numbers)
        # Used on the loop only:
        self._window = SendWindow(self._book, loop, max_in_flight)
        self._running: dict[Ticket, asyncio.Task[None]] = {}
        self._cancels = CancelSender(transport, loop)

    # -- on any thread ---------------------------------------------------------------------------------------

    def start(self, work: Work, session: str, *, latest_wins: bool = False) -> Ticket:
        """Accepts a request; with ``latest_wins`` it supersedes every older one of its session.

        Those in flight are left to the server, which knows what it has started: a mask that is computed anyway is
        worth showing while the mouse moves on.
        """
        ticket, superseded = self._book.add(session, latest_wins=latest_wins)
        self._drop(superseded)
        if running_loop() is self._loop:
            self._start_task(ticket, work)
        elif not self._call_on_loop(self._start_task, ticket, work):
            self._book.settle(ticket, Cancelled(_DROPPED))
        return ticket

    def submit(
        self, call: Call, session: str, *, latest_wins: bool = False, on_message: OnMessage | None = None
    ) -> Ticket:
        """As :meth:`start`, for a request of one call.

        Args:
            on_message: for a model that streams; called on the loop with every message. The last one is the outputs.
        """
        return self.start(lambda send: send(call, on_message), session, latest_wins=latest_wins)

    async def infer(self, call: Call, session: str | None = None, *, latest_wins: bool = False) -> Outputs:
        """Sends one call and waits for its outputs; it is withdrawn if the awaiting task is cancelled."""
        return await self.wait(self.submit(call, session or uuid.uuid4().hex, latest_wins=latest_wins))

    async def wait(self, ticket: Ticket) -> Outputs:
        """A ticket's outputs; may be awaited on any loop."""
        try:
            return await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            self.withdraw(ticket)
            raise

    async def follow(self, start: Callable[[OnMessage], Ticket]) -> AsyncGenerator[Outputs, None]:
        """The messages of a request to a stream, on any loop; then raises the request's error, if it has one.

        Closing the generator early withdraws the request.

        Args:
            start: starts the request with this ``on_message``.
        """
        received: asyncio.Queue[Outputs | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(message: Outputs | None) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(received.put_nowait, message)

        ticket = start(put)
        ticket.future.add_done_callback(lambda _: put(None))
        try:
            while (message := await received.get()) is not None:
                yield message
            ticket.future.result()
        finally:
            if not ticket.done:
                self.withdraw(ticket)

    def cancel(self, session: str, *, keep_latest: bool = False) -> int:
        """Cancels a session's pending requests, here and on the server; returns their number."""
        tickets, before = self._book.cancellable(session, keep_latest=keep_latest)
        count = self._drop(tickets)
        for destination in {ticket.sent_to for ticket in tickets if ticket.sent_to is not None}:
            self.send_cancel(destination, self.server_session(session), before=before)
        return count

    def withdraw(self, ticket: Ticket) -> None:
        """Cancels one request whose caller no longer waits."""
        if self._drop([ticket]) or ticket.future.cancelled():
            self._cancel_only(ticket)

    def pending(self, session: str) -> int:
        """How many requests of a session have no response yet."""
        return self._book.pending(session)

    def abort(self, error: TritonSamError, models: Collection[str] | None = None) -> int:
        """Fails the requests to ``models`` (None: all requests) with ``error`` at once, because the server lost them.

        Returns:
            The number of requests.
        """
        tickets = self._book.sent_to(models)
        count = sum(self._book.settle(ticket, error) for ticket in tickets)
        self._call_on_loop(self._cancel_tasks, tickets)
        return count

    def server_session(self, session: str) -> str:
        """A session's name on the server."""
        return f"{self._namespace}/{session}" if self._namespace else session

    def send_cancel(self, destination: Destination, server_session: str, **which: int) -> None:
        """As :meth:`CancelSender.send`, from any thread."""
        self._call_on_loop(self._cancels.send, destination, server_session, which)

    def _cancel_only(self, ticket: Ticket) -> None:
        if ticket.sent_to is not None:
            self.send_cancel(ticket.sent_to, self.server_session(ticket.session), only=ticket.sequence)

    def _drop(self, tickets: list[Ticket]) -> int:
        dropped = [ticket for ticket in tickets if self._book.settle(ticket, Cancelled(_DROPPED))]
        if tickets:
            self._call_on_loop(self._stop_tasks, tickets)
        return len(dropped)

    def _call_on_loop(self, action: Callable[..., object], *arguments: object) -> bool:
        """Runs a function on the loop; False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            return False
        return True

    # -- on the loop -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancels pending requests, waits for those in flight, closes the connection."""
        for session in self._book.close():
            self.cancel(session)
        await asyncio.sleep(0)  # the cancels become tasks
        tasks = [*self._running.values(), *self._cancels.tasks]
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self._transport.close()

    def _start_task(self, ticket: Ticket, work: Work) -> None:
        if not ticket.done:
            task = self._running[ticket] = self._loop.create_task(self._run(ticket, work))
            # Not at the end of the coroutine: a task that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self._finish(ticket))

    def _finish(self, ticket: Ticket) -> None:
        del self._running[ticket]
        self._book.settle(ticket, Cancelled("the connection was closed before the response arrived"))

    async def _run(self, ticket: Ticket, work: Work) -> None:
        try:
            result: Outputs | TritonSamError = await work(partial(self._send, ticket))
        except TritonSamError as error:
            result = error
            if isinstance(error, DeadlineExceeded):
                self._cancel_only(ticket)
        except Exception as error:
            log.exception("a request failed with an unexpected error")
            result = InternalError(f"the request failed in the client ({type(error).__name__})")
        self._book.settle(ticket, result)

    async def _send(self, ticket: Ticket, call: Call, on_message: OnMessage | None = None) -> Outputs:
        await self._window.acquire(ticket)
        try:
            # Before the check: a cancel settles the ticket and then reads this, so one of the two sees the other.
            ticket.sent_to = Destination.of(call.model, call.headers)
            if ticket.done:
                raise Cancelled(_DROPPED)
            self._cancel_superseded_elsewhere(ticket)
            numbered = self._numbered(ticket, call)
            if on_message is None:
                return await self._transport.infer(numbered)
            return await last_message(self._transport, numbered, on_message)
        finally:
            self._window.release(ticket)
            if ticket.done:  # the caller no longer waits: skip the calls that would follow
                raise Cancelled(_DROPPED)

    def _cancel_superseded_elsewhere(self, ticket: Ticket) -> None:
        """Cancels the older hovers on other images: behind a proxy their server may never see the newer request."""
        if ticket.latest_wins:
            for destination in self._book.superseded_elsewhere(ticket):
                self._cancels.send(destination, self.server_session(ticket.session), {"before": ticket.sequence})

    def _numbered(self, ticket: Ticket, call: Call) -> Call:
        numbers: dict[str, str | int | bool] = {
            "session_id": self.server_session(ticket.session),
            "sequence": ticket.sequence,
        }
        if ticket.latest_wins:
            numbers["latest_wins"] = True
        return replace(call, parameters={**call.parameters, **numbers})

    def _stop_tasks(self, tickets: list[Ticket]) -> None:
        """Ends the tasks of cancelled requests; those in flight end when the server responds to their cancel."""
        for ticket in tickets:
            task = self._running.get(ticket)
            if task is None:
                continue
            if ticket.in_flight:
                self._cancels.cancel_natively(task)
            else:
                task.cancel()

    def _cancel_tasks(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            task = self._running.get(ticket)
            if task is not None:
                task.cancel()
