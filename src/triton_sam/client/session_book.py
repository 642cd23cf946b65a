"""Requests that have no response yet, numbered and grouped by session."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from triton_sam.client.wire import IMAGE_HEADER, Call, Outputs
from triton_sam.errors import InvalidInput, TritonSamError

#: Per session: one is being decoded, one is queued on the server, one is about to supersede that.
_MAX_HOVERS_IN_FLIGHT = 3


class Destination(NamedTuple):
    """What a request was sent to: a cancel for it must reach the same model on the same server.

    Attributes:
        image: the value of the header by which a proxy chooses the server; None if the request has none.
    """

    model: str
    image: str | None = None

    @classmethod
    def of(cls, model: str, headers: Mapping[str, str]) -> Destination:
        return cls(model, headers.get(IMAGE_HEADER))

    def cancel_call(self, parameters: Mapping[str, str | int | bool]) -> Call:
        """A cancel for requests that were sent here."""
        headers = {} if self.image is None else {IMAGE_HEADER: self.image}
        return Call(self.model, {}, ("result_json",), {**parameters, "cancel": True}, headers=headers)


@dataclass(eq=False, slots=True)
class Ticket:
    """One request, from any thread.

    Attributes:
        future: receives the outputs or an error; :class:`Cancelled` as soon as it is cancelled or superseded.
        sent_to: None until it is sent.
    """

    session: str
    sequence: int
    latest_wins: bool
    future: concurrent.futures.Future[Outputs] = field(default_factory=concurrent.futures.Future)
    sent_to: Destination | None = None
    in_flight: bool = False

    @property
    def done(self) -> bool:
        return self.future.done()


@dataclass(slots=True)
class _Session:
    newest: int = 0
    pending: dict[int, Ticket] = field(default_factory=dict)
    """Tickets without a response for the caller yet; oldest first."""
    in_flight: int = 0
    hovers_in_flight: int = 0


class SessionBook:
    """Numbers requests and keeps track of the pending ones, by session. Thread-safe."""

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        """
        Args:
            numbers: growing ones for the requests; None: 1, 2, ...
        """
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._closed = False

    def __len__(self) -> int:
        """The number of sessions with pending requests, or with cancelled ones that are still in flight."""
        return len(self._sessions)

    def add(self, session: str, *, latest_wins: bool) -> tuple[Ticket, list[Ticket]]:
        """(a new ticket, the older ones of its session that it supersedes and that are not in flight)."""
        with self._lock:
            if self._closed:
                raise InvalidInput("the connection is closed: make a new one")
            ticket = Ticket(session, next(self._numbers), latest_wins)
            entry = self._sessions.setdefault(session, _Session())
            entry.newest = ticket.sequence
            superseded = [older for older in entry.pending.values() if latest_wins and not older.in_flight]
            entry.pending[ticket.sequence] = ticket
        return ticket, superseded

    def close(self) -> list[str]:
        """Refuses new tickets from now on; returns the sessions."""
        with self._lock:
            self._closed = True
            return list(self._sessions)

    def pending(self, session: str) -> int:
        """How many requests of a session have no response yet."""
        with self._lock:
            entry = self._sessions.get(session)
            return 0 if entry is None else len(entry.pending)

    def cancellable(self, session: str, *, keep_latest: bool) -> tuple[list[Ticket], int]:
        """(pending tickets of a session, all or all but the newest; the number before which all of them are)."""
        with self._lock:
            entry = self._sessions.get(session)
            if entry is None:
                return [], 0
            before = entry.newest if keep_latest else entry.newest + 1
            return [ticket for ticket in entry.pending.values() if ticket.sequence < before], before

    def sent_to(self, models: Collection[str] | None) -> list[Ticket]:
        """Pending tickets that were sent to one of ``models``; None: all pending tickets."""
        with self._lock:
            return [
                ticket
                for entry in self._sessions.values()
                for ticket in entry.pending.values()
                if models is None or (ticket.sent_to is not None and ticket.sent_to.model in models)
            ]

    def superseded_elsewhere(self, ticket: Ticket) -> set[Destination]:
        """Where older hovers of the ticket's session are in flight, other than where the ticket itself is sent."""
        with self._lock:
            entry = self._sessions.get(ticket.session)
            older = [] if entry is None else [other for other in entry.pending.values() if other.latest_wins]
            destinations = {other.sent_to for other in older if other.in_flight and other.sequence < ticket.sequence}
            return {other for other in destinations if other is not None and other != ticket.sent_to}

    def settle(self, ticket: Ticket, result: Outputs | TritonSamError) -> bool:
        """Sets a ticket's result; False if it has one already, or its caller has cancelled the future."""
        with self._lock:
            entry = self._sessions.get(ticket.session)
            if entry is not None:
                entry.pending.pop(ticket.sequence, None)
                self._remove_if_idle(ticket.session, entry)
        try:
            if isinstance(result, TritonSamError):
                ticket.future.set_exception(result)
            else:
                ticket.future.set_result(result)
        except concurrent.futures.InvalidStateError:
            return False
        return True

    def mark_in_flight(self, ticket: Ticket) -> bool:
        """Counts a request that is about to be sent; False if its session has too many hovers in flight."""
        with self._lock:
            entry = self._sessions.setdefault(ticket.session, _Session(ticket.sequence))
            if ticket.latest_wins and entry.hovers_in_flight >= _MAX_HOVERS_IN_FLIGHT:
                return False
            entry.in_flight += 1
            entry.hovers_in_flight += ticket.latest_wins
            ticket.in_flight = True
            return True

    def mark_returned(self, ticket: Ticket) -> None:
        """Ends :meth:`mark_in_flight`."""
        with self._lock:
            ticket.in_flight = False
            entry = self._sessions[ticket.session]
            entry.in_flight -= 1
            entry.hovers_in_flight -= ticket.latest_wins
            self._remove_if_idle(ticket.session, entry)

    def _remove_if_idle(self, session: str, entry: _Session) -> None:
        if not entry.pending and not entry.in_flight:
            self._sessions.pop(session, None)
