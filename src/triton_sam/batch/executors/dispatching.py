"""What is done next: which image is read, and which is sent to which server. Pure: no threads, no clock.

An image that was in flight when its server died or fell silent may be the cause, and may not. It is tried again, on
another server if there is one. From the second time on it is sent alone, so that the third tells: it has failed if
other images were answered since, or if the server answers again and nothing else is left to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from triton_sam.batch.executors.pacing import Sent
from triton_sam.batch.executors.segmenting import digest_of
from triton_sam.batch.executors.servers import Servers, ServerState
from triton_sam.batch.records import ItemResult, Outcome, Work
from triton_sam.client.core import ImageFile
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    JobStopped,
    NotAuthorised,
    NotFound,
    QueueFull,
    RateLimited,
    RequestTimeout,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
    Unsupported,
)

_TRIES = 3
#: After so many errors of its own without an answer a server is broken, and no image is to blame.
_MOST_ERRORS = 12
#: From so many strikes on an image is sent alone.
_ALONE_FROM = 2
#: Images that are read before a server is free, and their bytes.
_READ_AHEAD, _READ_AHEAD_BYTES = 4, 2**28
_STOPS = (NotAuthorised, Forbidden, JobStopped)
_LOST = (ServerUnreachable, DeadlineExceeded, RequestTimeout)


@dataclass(eq=False, slots=True)
class Entry:
    """An image on its way.

    Attributes:
        into: where its outcome goes.
        image, size, order: its bytes, width and height, and its servers, once it is read.
        erred: servers that had an error of their own with it, once for each time.
        struck: servers that were lost while it was in flight.
        was_alone: whether it was alone the last time.
    """

    work: Work
    into: deque[Outcome]
    image: ImageFile | None = None
    size: tuple[int, int] = (0, 0)
    order: list[int] = field(default_factory=list)
    erred: list[int] = field(default_factory=list)
    struck: list[int] = field(default_factory=list)
    first_strike: float = 0.0
    was_alone: bool = False
    reason: str = ""

    @property
    def is_suspect(self) -> bool:
        return len(self.struck) >= _ALONE_FROM

    @property
    def blame(self) -> str:
        """Why it has failed, if servers were lost with it."""
        held = f"its server was lost or silent {len(self.struck)} times while it had this image"
        return f"{held}, and works otherwise ({self.reason})"


@dataclass(eq=False, slots=True)
class Flight:
    """An image that was sent.

    Attributes:
        waited: seconds in the server's queues so far; None if it has not said.
    """

    entry: Entry
    server: int
    sent: Sent
    waited: float | None = None

    def note(self, timings: Mapping[str, float]) -> None:
        """Adds ``timings_ms`` of an answer."""
        told = [float(timings[name]) / 1e3 for name in ("queue_encode", "queue") if name in timings]
        if told:
            self.waited = (self.waited or 0.0) + sum(told)


class Dispatcher:
    """The images that wait, and those in flight. Its caller holds a lock."""

    def __init__(self, servers: Servers, readers: int) -> None:
        self.servers = servers
        self.stopped: JobStopped | None = None
        self.reading = 0
        self._readers = readers
        self._unread: deque[Entry] = deque()
        self._ready: list[Entry] = []
        self._ready_bytes = 0
        self._parked: list[Entry] = []
        self._flights: list[dict[Flight, None]] = [{} for _ in servers.states]
        self._last_answer = float("-inf")

    # -- how many ------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Images that have no outcome yet."""
        return len(self._unread) + self.reading + len(self._ready) + len(self._parked) + self.in_flight

    @property
    def in_flight(self) -> int:
        return sum(map(len, self._flights))

    @property
    def room(self) -> int:
        """How many more images it takes: those that servers want, and some that are read meanwhile."""
        return max(0, self._wanted + self._ahead - self.held)

    @property
    def _wanted(self) -> int:
        return sum(state.pace.limit for state in self.servers.up)

    @property
    def _ahead(self) -> int:
        return _READ_AHEAD + self._wanted // 2

    # -- reading -------------------------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> None:
        self._unread.append(entry)

    def next_read(self) -> Entry | None:
        """An image to read now; :meth:`read` or :meth:`end` follows."""
        if self.stopped is not None or not self._unread or self.reading >= self._readers:
            return None
        free = max(0, self._wanted - self.in_flight)
        if len(self._ready) + self.reading >= self._ahead + free or self._ready_bytes >= _READ_AHEAD_BYTES:
            return None
        self.reading += 1
        return self._unread.popleft()

    def read(self, entry: Entry, image: ImageFile) -> None:
        """An image was read, and waits for its server."""
        self.reading -= 1
        entry.image = image
        entry.order = self.servers.order(digest_of(image))
        self._wait(entry)

    def read_failed(self, entry: Entry, error: BaseException) -> None:
        """An image could not be read, or has nothing to ask about."""
        self.reading -= 1
        if isinstance(error, JobStopped):
            self._stop(error)
        else:
            self._fail(entry, sentence(error))

    def needs_no_server(self, entry: Entry, result: ItemResult) -> None:
        """There is nothing to ask about an image that was read."""
        self.reading -= 1
        self._finish(entry, Outcome(entry.work, result))

    def _wait(self, entry: Entry) -> None:
        assert entry.image is not None
        self._ready_bytes += len(entry.image.data)
        self._ready.append(entry)

    # -- sending -------------------------------------------------------------------------------------------------

    def next_flight(self, server: int, now: float) -> Flight | None:
        """An image to send to a server now; one of the ends follows."""
        state = self.servers.states[server]
        if self.stopped is not None or not state.is_up or not state.pace.room(now):
            return None
        flights = self._flights[server]
        if any(flight.entry.is_suspect for flight in flights):
            return None
        entry = self._choose(server)
        if entry is None or (entry.is_suspect and flights):  # it waits until it is alone
            return None
        assert entry.image is not None
        self._ready.remove(entry)
        self._ready_bytes -= len(entry.image.data)
        entry.was_alone = not flights
        flight = Flight(entry, server, state.pace.sent(now))
        flights[flight] = None
        return flight

    def _choose(self, server: int) -> Entry | None:
        own = [
            entry for entry in self._ready if self.servers.home(entry.order, [*entry.struck, *entry.erred]) == server
        ]
        suspects = (entry for entry in own if entry.is_suspect)
        found = next(suspects, None) or (own[0] if own else None)
        if found is not None:
            return found
        if len(self._ready) < self._ahead:
            return None  # one of its own may still be read
        # Rather than be idle it takes one of a server that is behind.
        return next((entry for entry in self._ready if not entry.struck and server not in entry.erred), None)

    def wait_for(self, server: int, now: float) -> float | None:
        """Seconds after which a server's threads look again without being told; None for never."""
        state = self.servers.states[server]
        ask_in = state.ask_in(now)
        return ask_in if ask_in is not None else state.pace.pause_left(now) or None

    # -- ends of a flight ----------------------------------------------------------------------------------------

    def answered(self, flight: Flight, result: ItemResult, now: float) -> None:
        self._flights[flight.server].pop(flight)
        state = self.servers.states[flight.server]
        state.pace.answered(flight.sent, now, flight.waited)
        self._worked(state, now)
        self._finish(flight.entry, Outcome(flight.entry.work, result))

    def failed(self, flight: Flight, error: BaseException, now: float) -> None:
        """A request ended with an exception."""
        self._flights[flight.server].pop(flight)
        state, entry = self.servers.states[flight.server], flight.entry
        entry.reason = sentence(error)
        if isinstance(error, _STOPS):
            state.pace.dropped()
            self._stop(_stop_of(error, state))
        elif isinstance(error, NotFound):
            state.pace.dropped()
            self._not_found(state, error, now)
            self._wait(entry)
        elif isinstance(error, Unavailable):
            state.pace.refused(flight.sent, now, error.retry_after)
            self._refused(state, error, now)
            self._wait(entry)
        elif isinstance(error, _LOST):
            state.pace.dropped()
            self._lost(flight, error, now)
        elif isinstance(error, InvalidInput | Unsupported):
            state.pace.dropped()
            self._worked(state, now)
            self._finish(entry, Outcome(entry.work, failure=entry.reason))
        else:
            self._broken(flight, error, now)

    def _worked(self, state: ServerState, now: float) -> None:
        state.answered(now)
        self._last_answer = now
        for entry in [parked for parked in self._parked if parked.first_strike < now]:
            self._parked.remove(entry)
            self._give_up(entry)

    def _refused(self, state: ServerState, error: Unavailable, now: float) -> None:
        state.refused(now, sentence(error))
        if isinstance(error, QueueFull | RateLimited):  # it works, for others
            state.responds()
        else:
            self._trouble(state, now)

    def _not_found(self, state: ServerState, error: NotFound, now: float) -> None:
        if not state.has_answered:
            self._stop(_stop_of(error, state))
            return
        state.away(now, sentence(error))  # a server that starts again has its models a little later
        self._trouble(state, now)

    def _lost(self, flight: Flight, error: BaseException, now: float) -> None:
        state, entry = self.servers.states[flight.server], flight.entry
        if not isinstance(error, DeadlineExceeded) or state.last_answer < flight.sent.at:
            state.away(now, sentence(error))
        entry.first_strike = entry.first_strike if entry.struck else now
        entry.struck.append(flight.server)
        if len(entry.struck) < _TRIES or not entry.was_alone:
            self._wait(entry)
        elif self._last_answer > entry.first_strike:
            self._give_up(entry)
        else:
            self._parked.append(entry)
            self._settle_parked()
        self._trouble(state, now)

    def _broken(self, flight: Flight, error: BaseException, now: float) -> None:
        entry = flight.entry
        entry.erred.append(flight.server)
        state = self.servers.states[flight.server]
        state.pace.dropped()
        state.errors_in_row += 1
        if state.errors_in_row > _MOST_ERRORS:
            state.away(now, entry.reason)
            self._wait(entry)
            self._trouble(state, now)
            return
        state.responds()
        if len(entry.erred) < _TRIES or (isinstance(error, Cancelled) and len(entry.erred) < 2 * _TRIES):
            self._wait(entry)
        else:
            self._finish(entry, Outcome(entry.work, failure=entry.reason))

    # -- questions to servers that are away ----------------------------------------------------------------------

    def back(self, server: int) -> None:
        """A server has answered a question."""
        self.servers.states[server].back()
        self._settle_parked()

    def still_away(self, server: int, error: BaseException, now: float) -> None:
        state = self.servers.states[server]
        if isinstance(error, _STOPS) or (isinstance(error, NotFound) and not state.has_answered):
            self._stop(_stop_of(error, state))
        state.still_away(now, sentence(error))
        self._trouble(state, now)

    def _trouble(self, state: ServerState, now: float) -> None:
        state.troubled(now)
        given_up = self.servers.given_up(now)
        if given_up is not None:
            self._stop(given_up)

    # -- outcomes ------------------------------------------------------------------------------------------------

    def _finish(self, entry: Entry, outcome: Outcome) -> None:
        entry.image = None
        entry.into.append(outcome)
        self._settle_parked()

    def _settle_parked(self) -> None:
        """Gives up images for which no other can tell whether the server works: there is none."""
        if self.servers.up and not (self._unread or self.reading or self._ready or self.in_flight):
            while self._parked:
                self._give_up(self._parked.pop())

    def _fail(self, entry: Entry, failure: str) -> None:
        self._finish(entry, Outcome(entry.work, failure=failure))

    def _give_up(self, entry: Entry) -> None:
        self._fail(entry, entry.blame)

    def _stop(self, error: JobStopped) -> None:
        if self.stopped is None:
            self.stopped = error


def sentence(error: BaseException) -> str:
    """An exception's message; with its type if it is none of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, TritonSamError):
        return text
    return f"unexpected {type(error).__name__}: {text}"


def _stop_of(error: BaseException, state: ServerState) -> JobStopped:
    if isinstance(error, JobStopped):
        return error
    text = sentence(error)
    return JobStopped(text if state.address in text else f"{state.address}: {text}")
