"""How many requests to keep in flight on one server. Pure: it is told the time and what has happened.

A server is busy if one request at least waits while it computes. That is seen in its answers: the time that a request
waited in the server's queues is then about the time that it was computed. Below that, more are sent. A server that
computes in batches looks busy with small batches too, so now and then a larger number is tried, and kept only if more
was answered a second. A number at which the queue grows without more answers is given up. A refusal halves the number.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_IN_FLIGHT = 64
FIRST = 2
#: Waiting / service time: below the first the server may run idle, above the second its queue is longer than needed.
_SHORT_QUEUE, _LONG_QUEUE = 0.75, 1.75
#: A larger number is kept if the rate grew by this share of what it grew by.
_WORTH = 0.3
#: Answers of a window: so many times the number in flight, and at least so many.
_WINDOW_ROUNDS, _LEAST_ANSWERS = 2, 8
#: Windows between two trials of a larger number; doubled after each in vain.
_FIRST_REST, _LONGEST_REST = 4, 64
#: Of the limit must have been in flight on average, else the job itself is slower than the server.
_USED = 0.8
_FIRST_PAUSE, _LONGEST_PAUSE, _MAX_DOUBLINGS = 0.25, 4.0, 6


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was sent.

    Attributes:
        in_flight: requests in flight, with this one.
        epoch: of the limit under which it was sent.
    """

    at: float
    in_flight: int
    epoch: int


@dataclass(slots=True)
class _Window:
    """What the answers to requests told that were sent under one limit."""

    answers: int = 0
    waited: float = 0.0
    served: float = 0.0
    seconds: float = 0.0
    in_flight: float = 0.0

    def add(self, sent: Sent, seconds: float, waited: float) -> None:
        self.answers += 1
        self.waited += waited
        self.served += max(0.0, seconds - waited)
        self.seconds += seconds
        self.in_flight += sent.in_flight

    @property
    def queue(self) -> float:
        """Waiting time / service time."""
        return self.waited / self.served if self.served > 0 else 0.0

    @property
    def rate(self) -> float:
        """Answers a second, by Little's law: counting them would depend on where bursts fall."""
        return self.in_flight / self.seconds if self.seconds > 0 else 0.0


class Pace:
    """The number of requests to keep in flight on a server. Not thread-safe."""

    def __init__(self, most: int = MOST_IN_FLIGHT) -> None:
        self.limit = min(FIRST, most)
        self.in_flight = 0
        self._most = most
        #: Above it requests were refused.
        self._ceiling = most
        self._windows_below, self._wait_below = 0, _FIRST_REST
        self._epoch = 0
        self._window = _Window()
        self._is_starting = True
        #: (limit, rate) to go back to if the trial of a larger limit is in vain.
        self._base: tuple[int, float] | None = None
        self._rest = 0
        self._rest_windows = _FIRST_REST
        self._paused_until = 0.0
        self._refusals = 0
        self._shortest: float | None = None

    # -- requests ------------------------------------------------------------------------------------------------

    def room(self, now: float) -> int:
        """How many requests may be sent now."""
        return 0 if now < self._paused_until else max(0, self.limit - self.in_flight)

    def pause_left(self, now: float) -> float:
        """Seconds until requests may be sent again."""
        return max(0.0, self._paused_until - now)

    def sent(self, now: float) -> Sent:
        """Counts a request; give what it returns with its end."""
        self.in_flight += 1
        return Sent(now, self.in_flight, self._epoch)

    def answered(self, sent: Sent, now: float, waited: float | None = None) -> None:
        """A request was answered.

        Args:
            waited: seconds in the server's queues; None if it does not say.
        """
        self.in_flight -= 1
        self._refusals = 0
        seconds = max(now - sent.at, 1e-9)
        self._shortest = seconds if self._shortest is None else min(self._shortest, seconds)
        if waited is None:
            waited = seconds - self._shortest
        if sent.epoch != self._epoch:
            return
        self._window.add(sent, seconds, min(waited, seconds))
        if self._window.answers >= max(_WINDOW_ROUNDS * self.limit, _LEAST_ANSWERS):
            self._judge(self._window)

    def refused(self, sent: Sent, now: float, retry_after: float | None = None) -> None:
        """The server did not take a request: it is full, or asks to wait."""
        in_flight = self.in_flight
        self.in_flight -= 1
        self._refusals += 1
        backoff = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._refusals - 1, _MAX_DOUBLINGS))
        self._paused_until = max(self._paused_until, now + max(retry_after or 0.0, backoff))
        if sent.epoch != self._epoch:
            return  # one decrease for all that were refused together
        self._ceiling = max(1, min(self._ceiling, in_flight) - 1)
        self._windows_below = 0
        self._is_starting = False
        self._base = None
        self._rest, self._rest_windows = 0, _FIRST_REST
        self._set(max(1, self.limit // 2))

    def dropped(self) -> None:
        """A request ended in a way that tells nothing about the server's load."""
        self.in_flight -= 1

    def restart(self) -> None:
        """Begins anew with a server that was away."""
        self.limit = min(FIRST, self._most)
        self._ceiling = self._most
        self._windows_below, self._wait_below = 0, _FIRST_REST
        self._is_starting = True
        self._base = None
        self._paused_until, self._refusals, self._shortest = 0.0, 0, None
        self._rest, self._rest_windows = 0, _FIRST_REST
        self._new_epoch()

    # -- the limit -----------------------------------------------------------------------------------------------

    def _judge(self, seen: _Window) -> None:
        """Decides on the limit at the end of a window."""
        if seen.in_flight < _USED * self.limit * seen.answers:
            self._new_epoch()
            return
        if self.limit >= self._ceiling < self._most:
            self._raise_ceiling()
        if self._base is not None:
            self._judge_trial(seen, *self._base)
        elif seen.queue < _SHORT_QUEUE:
            self._set(self.limit * 2 if self._is_starting else self.limit + max(1, self.limit // 8))
        elif seen.queue > _LONG_QUEUE and self.limit > FIRST:
            self._is_starting = False
            self._set(max(FIRST, self.limit - max(1, self.limit // 8)))
        elif self._is_starting or self._rest >= self._rest_windows:
            self._try_more(seen.rate)
        else:
            self._rest += 1
            self._new_epoch()

    def _raise_ceiling(self) -> None:
        """What was refused once may be taken later, when others send less. It is tried more and more rarely."""
        self._windows_below += 1
        if self._windows_below >= self._wait_below:
            self._windows_below = 0
            self._wait_below = min(self._wait_below * 2, _LONGEST_REST)
            self._ceiling = min(self._most, self._ceiling + max(1, self._ceiling // 8))

    def _try_more(self, rate: float) -> None:
        base = self.limit
        self._set(base * 2 if self._is_starting else base + max(1, base // 4))
        if self.limit > base:
            self._base = base, rate
        else:
            self._end_trial(in_vain=True)

    def _judge_trial(self, seen: _Window, base: int, rate: float) -> None:
        if seen.queue < _SHORT_QUEUE or seen.rate >= rate * (1 + _WORTH * (self.limit - base) / base):
            self._end_trial(in_vain=False)
            self._try_more(seen.rate)
            return
        self._set(base)
        self._end_trial(in_vain=True)

    def _end_trial(self, *, in_vain: bool) -> None:
        self._base = None
        self._rest = 0
        if in_vain:
            self._rest_windows = _FIRST_REST if self._is_starting else min(self._rest_windows * 2, _LONGEST_REST)
            self._is_starting = False
        else:
            self._rest_windows = _FIRST_REST

    def _set(self, limit: int) -> None:
        """A new limit. What is in flight was sent under another one, and is not counted."""
        self.limit = max(1, min(limit, self._ceiling, self._most))
        self._new_epoch()

    def _new_epoch(self) -> None:
        self._epoch += 1
        self._window = _Window()
