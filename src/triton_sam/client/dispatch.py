"""Requests on their way to a server: numbered, bounded, and really cancelled.

Every request of a session carries a number that grows. "Cancel all before number 50" then means the same to the
server in whatever order requests and cancels arrive over many connections, and a late hover cannot supersede a newer
one. Nothing is cancelled natively by default: on older servers that can end the server (DESIGN.md).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.io_thread import running_loop
from triton_sam.client.wire import Call
from triton_sam.core.fair_queue import FairQueue
from triton_sam.errors import Cancelled, DeadlineExceeded, InternalError, InvalidInput, TritonSamError

log = logging.getLogger(__name__)

Outputs = Mapping[str, npt.NDArray[Any]]
Send = Callable[[Call], Awaitable[Outputs]]
#: What a request does: one call, or more where the first one fails in a way that can be mended.
Work = Callable[[Send], Awaitable[Outputs]]
#: One is being decoded, one waits on the server, one is about to supersede that.
_HOVERS_IN_AIR = 3
_DRAIN_SECONDS = 5.0
_MANY = 1024
_DROPPED = "the request was cancelled or superseded by a newer one of its session"


@dataclass(eq=False, slots=True)
class Ticket:
    """One request, from any thread.

    Attributes:
        future: gets the outputs, or our exception; :class:`Cancelled` as soon as it is cancelled or superseded.
        model: whom it was sent to; None while it was not.
    """

    session: str
    sequence: int
    latest_wins: bool
    future: concurrent.futures.Future[Outputs] = field(default_factory=concurrent.futures.Future)
    model: str | None = None
    in_air: bool = False

    @property
    def done(self) -> bool:
        return self.future.done()


@dataclass(slots=True)
class _Session:
    newest: int = 0
    pending: dict[int, Ticket] = field(default_factory=dict)
    """Not yet answered to the caller; oldest first."""
    in_air: int = 0
    hovers_in_air: int = 0


class Dispatcher:
    """Sends requests over one transport, on one event loop. Its methods may be called from every thread."""

    def __init__(self, transport: AsyncTransport, loop: asyncio.AbstractEventLoop, *, max_in_air: int = 64) -> None:
        """
        Args:
            max_in_air: requests that are sent and not answered; more wait here, where cancelling them is free.
        """
        self._transport = transport
        self._loop = loop
        self._max_in_air = max_in_air
        # Sessions are named by users: two programs with a "session 1" must not cancel each other.
        self._namespace = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._closed = False
        # From here on: touched on the loop only.
        self._running: dict[Ticket, asyncio.Task[None]] = {}
        self._in_air = 0
        # Sessions take turns here too: a server that does so never sees who waits in the client.
        self._waiting: FairQueue[tuple[Ticket, asyncio.Future[None]]] = FairQueue(_MANY)
        self._tidy_at = _MANY
        self._telling: set[asyncio.Task[None]] = set()

    def start(self, work: Work, session: str, *, latest_wins: bool = False) -> Ticket:
        """Takes a request in; with ``latest_wins`` it supersedes every older one of its session.

        Those that are in the air are left to the server, which knows what it has begun: a mask that is computed
        anyway is worth showing while the mouse moves on.
        """
        with self._lock:
            if self._closed:
                raise InvalidInput("the connection is closed: make a new one")
            ticket = Ticket(session, next(self._numbers), latest_wins)
            book = self._sessions.setdefault(session, _Session())
            book.newest = ticket.sequence
            superseded = [older for older in book.pending.values() if latest_wins and not older.in_air]
            book.pending[ticket.sequence] = ticket
        self._drop(superseded)
        if running_loop() is self._loop:
            self._begin(ticket, work)
        elif not self._on_loop(self._begin, ticket, work):
            self._settle(ticket, Cancelled(_DROPPED))
        return ticket

    def submit(self, call: Call, session: str, *, latest_wins: bool = False) -> Ticket:
        """As :meth:`start`, for a request that is one call."""
        return self.start(lambda send: send(call), session, latest_wins=latest_wins)

    async def infer(self, call: Call, session: str | None = None, *, latest_wins: bool = False) -> Outputs:
        """One call from start to end; withdrawn from the server where the awaiting task is cancelled."""
        return await self.wait(self.submit(call, session or uuid.uuid4().hex, latest_wins=latest_wins))

    async def wait(self, ticket: Ticket) -> Outputs:
        """A ticket's outputs, on whatever loop this runs."""
        try:
            return await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            self.withdraw(ticket)
            raise

    def cancel(self, session: str, *, keep_latest: bool = False) -> int:
        """Drops what a session has waiting, here and on the server; returns how many requests that were."""
        with self._lock:
            book = self._sessions.get(session)
            if book is None:
                return 0
            dropped = [ticket for ticket in book.pending.values() if not keep_latest or ticket.sequence < book.newest]
            before = book.newest if keep_latest else book.newest + 1
        count = self._drop(dropped)
        for model in {ticket.model for ticket in dropped if ticket.model is not None}:
            self.tell(model, self.on_server(session), before=before)
        return count

    def withdraw(self, ticket: Ticket) -> None:
        """Drops one request whose caller has gone."""
        if (self._drop([ticket]) or ticket.future.cancelled()) and ticket.model is not None:
            self.tell(ticket.model, self.on_server(ticket.session), only=ticket.sequence)

    def pending(self, session: str) -> int:
        """How many requests of a session are not answered yet."""
        with self._lock:
            book = self._sessions.get(session)
            return 0 if book is None else len(book.pending)

    def abort(self, error: TritonSamError, models: Collection[str] | None = None) -> int:
        """Answers what was sent to ``models`` (None: everything) with ``error`` at once, because they have gone.

        Returns:
            How many requests that were.
        """
        with self._lock:
            tickets = [
                ticket
                for book in self._sessions.values()
                for ticket in book.pending.values()
                if models is None or ticket.model in models
            ]
        count = sum(self._settle(ticket, error) for ticket in tickets)
        self._on_loop(self._hang_up, tickets)
        return count

    def on_server(self, session: str) -> str:
        """A session's name on the server."""
        return f"{self._namespace}/{session}"

    def tell(self, model: str, session_id: str, **what: int) -> None:
        """Sends a cancel for a session, by its name on the server; does not wait for the answer."""
        parameters: dict[str, str | int | bool] = {"session_id": session_id, "cancel": True, **what}
        call = Call(model, {}, ("result_json",), parameters)
        self._on_loop(lambda: self._keep(self._loop.create_task(self._tell(call))))

    async def close(self) -> None:
        """Drops what is pending, lets the server answer what is in the air, closes the connection. On the loop."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:
            self.cancel(session)
        await asyncio.sleep(0)  # the cancels become tasks
        tasks = [*self._running.values(), *self._telling]
        if tasks:
            _, unanswered = await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)
            for task in unanswered:
                task.cancel()
            await asyncio.gather(*unanswered, return_exceptions=True)
        await self._transport.close()

    # -- bookkeeping, on any thread --------------------------------------------------------------------------

    def _drop(self, tickets: list[Ticket]) -> int:
        dropped = [ticket for ticket in tickets if self._settle(ticket, Cancelled(_DROPPED))]
        if tickets:
            self._on_loop(self._stop, tickets)
        return len(dropped)

    def _on_loop(self, action: Callable[..., object], *arguments: object) -> bool:
        """Has something done on the loop; False where that has ended, and everything with it."""
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            return False
        return True

    def _settle(self, ticket: Ticket, answer: Outputs | TritonSamError) -> bool:
        """Answers a ticket; False where it has its answer already, or its caller has gone."""
        with self._lock:
            book = self._sessions.get(ticket.session)
            if book is not None:
                book.pending.pop(ticket.sequence, None)
                self._close_if_idle(ticket.session, book)
        try:
            if isinstance(answer, TritonSamError):
                ticket.future.set_exception(answer)
            else:
                ticket.future.set_result(answer)
        except concurrent.futures.InvalidStateError:
            return False
        return True

    def _close_if_idle(self, session: str, book: _Session) -> None:
        if not book.pending and not book.in_air:
            self._sessions.pop(session, None)

    # -- sending, on the loop --------------------------------------------------------------------------------

    def _begin(self, ticket: Ticket, work: Work) -> None:
        if not ticket.done:
            task = self._running[ticket] = self._loop.create_task(self._run(ticket, work))
            # Not at the end of the coroutine: one that is cancelled before its first step never comes there.
            task.add_done_callback(lambda _: self._end(ticket))

    def _end(self, ticket: Ticket) -> None:
        del self._running[ticket]
        self._settle(ticket, Cancelled("the connection was given up before the answer came"))

    async def _run(self, ticket: Ticket, work: Work) -> None:
        try:
            answer: Outputs | TritonSamError = await work(lambda call: self._send(ticket, call))
        except TritonSamError as error:
            answer = error
            if isinstance(error, DeadlineExceeded) and ticket.model is not None:
                self.tell(ticket.model, self.on_server(ticket.session), only=ticket.sequence)
        except Exception as error:
            log.exception("a request failed in a way that the transport does not know")
            answer = InternalError(f"the request failed in the client ({type(error).__name__})")
        self._settle(ticket, answer)

    async def _send(self, ticket: Ticket, call: Call) -> Outputs:
        await self._take_off(ticket, call.model)
        try:
            return await self._transport.infer(self._numbered(ticket, call))
        finally:
            self._land(ticket)
            if ticket.done:  # nobody waits any more: what was to follow is left out
                raise Cancelled(_DROPPED)

    async def _take_off(self, ticket: Ticket, model: str) -> None:
        """Waits until the request may be sent."""
        turn = self._loop.create_future()
        self._waiting.put((ticket, turn), ticket.session)
        self._let_go()
        if len(self._waiting) > self._tidy_at:  # those that were cancelled meanwhile
            self._waiting.take(lambda waiting: waiting[1].done())
            self._tidy_at = max(_MANY, 2 * len(self._waiting))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._land(ticket)
            raise
        ticket.model = model  # before the look below: whoever cancels looks in the other order, so one of us sees it
        if ticket.done:
            self._land(ticket)
            raise Cancelled(_DROPPED)

    def _let_go(self) -> None:
        """Gives the turn to those that may be sent now, in turns between sessions."""
        held: list[tuple[Ticket, asyncio.Future[None]]] = []
        while self._waiting and self._in_air < self._max_in_air:
            ticket, turn = self._waiting.pop()
            if turn.done() or ticket.done:
                turn.cancel()
                continue
            with self._lock:
                book = self._sessions.setdefault(ticket.session, _Session(ticket.sequence))
                if ticket.latest_wins and book.hovers_in_air >= _HOVERS_IN_AIR:
                    held.append((ticket, turn))
                    continue
                book.in_air += 1
                book.hovers_in_air += ticket.latest_wins
                ticket.in_air = True
            self._in_air += 1
            turn.set_result(None)
        for ticket, turn in held:
            self._waiting.put((ticket, turn), ticket.session)

    def _land(self, ticket: Ticket) -> None:
        self._in_air -= 1
        with self._lock:
            ticket.in_air = False
            book = self._sessions[ticket.session]
            book.in_air -= 1
            book.hovers_in_air -= ticket.latest_wins
            self._close_if_idle(ticket.session, book)
        self._let_go()

    def _numbered(self, ticket: Ticket, call: Call) -> Call:
        marks: dict[str, str | int | bool] = {
            "session_id": self.on_server(ticket.session),
            "sequence": ticket.sequence,
        }
        if ticket.latest_wins:
            marks["latest_wins"] = True
        return replace(call, parameters={**call.parameters, **marks})

    def _stop(self, tickets: list[Ticket]) -> None:
        """Ends the work of dropped requests; what is in the air lands by itself, because the server is told."""
        for ticket in tickets:
            task = self._running.get(ticket)
            if task is None:
                continue
            if ticket.in_air:
                self._keep(self._loop.create_task(self._cancel_natively(task)))
            else:
                task.cancel()

    async def _cancel_natively(self, task: asyncio.Task[None]) -> None:
        if await self._transport.can_cancel_natively():
            task.cancel()

    def _hang_up(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            task = self._running.get(ticket)
            if task is not None:
                task.cancel()

    async def _tell(self, call: Call) -> None:
        try:
            await self._transport.infer(call)
        except TritonSamError as error:
            # Whoever waits for the requests themselves learns of a lost server; these ones nobody waits for.
            log.debug("the server could not be told of a cancel: %s", error)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """asyncio itself holds a running task only weakly."""
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
