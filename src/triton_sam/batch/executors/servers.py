"""Which server an image goes to, and which servers respond. Pure: it is told the time and what has happened."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from triton_sam.batch.executors.pacing import MOST_IN_FLIGHT, Pace
from triton_sam.errors import InvalidInput, JobStopped

#: Seconds between questions to a server that is away; the first is asked at once.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
#: A server that has refused everything for so many seconds is passed over.
_REFUSING_SECONDS = 20.0


class ServerState:
    """What is known of a server.

    Attributes:
        is_up: whether images are sent to it; a server is taken to be up until it fails.
        has_answered: whether it ever answered about an image, so it does serve the model.
        reason: why it is away.
        trouble_since: when it first did not respond as it should, since it last did.
        errors_in_row: errors of its own since it last answered.
    """

    def __init__(self, address: str, most: int) -> None:
        self.address = address
        self.pace = Pace(most)
        self.is_up = True
        self.has_answered = False
        self.reason = ""
        self.last_answer = float("-inf")
        self.trouble_since: float | None = None
        self.errors_in_row = 0
        self._refusing_since: float | None = None
        self._ask_at = 0.0
        self._ask_pause = 0.0
        self._is_asking = False

    def answered(self, now: float) -> None:
        """It has answered about an image."""
        self.has_answered = True
        self.last_answer = now
        self.errors_in_row = 0
        self._refusing_since = None
        self.responds()
        if not self.is_up:
            self.is_up = True
            self.reason = ""

    def responds(self) -> None:
        """It works, or says that it has too much to do."""
        self.trouble_since = None

    def troubled(self, now: float) -> None:
        """It does not respond as it should."""
        if self.trouble_since is None:
            self.trouble_since = now

    def refused(self, now: float, reason: str) -> None:
        """It takes no image now."""
        if self._refusing_since is None:
            self._refusing_since = now
        elif now - self._refusing_since >= _REFUSING_SECONDS:
            self.away(now, reason, ask_after=self.pace.pause_left(now))

    def away(self, now: float, reason: str, ask_after: float = 0.0) -> None:
        """It does not respond, or cannot work: nothing is sent until it has answered a question."""
        self.reason = reason
        if self.is_up:
            self.is_up = False
            self._ask_at, self._ask_pause = now + ask_after, _FIRST_PAUSE

    def ask_in(self, now: float) -> float | None:
        """Seconds until it is to be asked whether it is back; None if it is up, or is being asked."""
        return None if self.is_up or self._is_asking else max(0.0, self._ask_at - now)

    def asking(self) -> None:
        """A question is being asked; :meth:`back` or :meth:`still_away` follows."""
        self._is_asking = True

    def back(self) -> None:
        """It has answered the question."""
        if self._ask_pause > _FIRST_PAUSE:  # a connection may also be lost without a restart
            self.pace.restart()
        self._is_asking = False
        self.is_up = True
        self.reason = ""
        self._refusing_since = None

    def still_away(self, now: float, reason: str) -> None:
        """It has not."""
        self._is_asking = False
        self.reason = reason
        self._ask_at = now + self._ask_pause
        self._ask_pause = min(self._ask_pause * 2, _LONGEST_PAUSE)


class Servers:
    """The servers of a job."""

    def __init__(self, addresses: Sequence[str], *, patience: float, most: int = MOST_IN_FLIGHT) -> None:
        """
        Args:
            patience: seconds without a response from any of them after which the job stops.
            most: requests in flight at each of them.
        """
        if len(set(addresses)) != len(addresses):
            twice = next(address for address in addresses if addresses.count(address) > 1)
            raise InvalidInput(f"{twice} is given twice: name each server once")
        self._patience = patience
        self.states = [ServerState(address, most) for address in addresses]

    def order(self, key: str) -> list[int]:
        """The servers of an image, the one it belongs to first. Without one of them, only its own images move."""
        return sorted(
            range(len(self.states)),
            key=lambda index: hashlib.sha256(f"{self.states[index].address} {key}".encode()).digest(),
        )

    def home(self, order: Sequence[int], avoid: Collection[int] = ()) -> int | None:
        """The server that an image goes to now, of its :meth:`order`; None if none is up.

        Args:
            avoid: taken only if no other is up.
        """
        up = [index for index in order if self.states[index].is_up]
        return next((index for index in up if index not in avoid), up[0] if up else None)

    @property
    def up(self) -> list[ServerState]:
        return [state for state in self.states if state.is_up]

    def given_up(self, now: float) -> JobStopped | None:
        """The end of the patience."""
        if any(state.trouble_since is None or now - state.trouble_since < self._patience for state in self.states):
            return None
        reasons = [f"{state.address}: {state.reason or 'no answer'}" for state in self.states]
        which = "the server has not" if len(reasons) == 1 else f"none of {len(reasons)} servers has"
        return JobStopped(
            f"{which} answered for {self._patience:.0f} s ({'; '.join(reasons)}): "
            "run the same command again when it is back"
        )
