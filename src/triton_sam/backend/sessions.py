"""Cancellations and sequence numbers per session, for requests that may arrive out of order."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_SESSIONS_KEPT = 4096
_SINGLES_KEPT = 256


@dataclass(slots=True)
class _Session:
    floor: int = 0
    """Every smaller sequence number is cancelled."""
    newest: int = 0
    """The largest sequence number with latest_wins."""
    singles: OrderedDict[int, None] = field(default_factory=OrderedDict)


class SessionBook:
    """Remembers which requests of a session are cancelled or superseded.

    Requests and cancellations use many connections and arrive in any order; sequence numbers restore it. Bounded: the
    least recently used sessions are forgotten first. Not thread-safe; the scheduler's lock guards it.
    """

    def __init__(self, capacity: int = _SESSIONS_KEPT) -> None:
        self._capacity = capacity
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def cancel(self, session: str, *, before: int | None = None, only: int | None = None) -> None:
        """Records a cancellation, for requests that arrive after it."""
        if before is None and only is None:
            return
        entry = self._entry(session)
        if before is not None:
            entry.floor = max(entry.floor, before)
        if only is not None:
            entry.singles[only] = None
            if len(entry.singles) > _SINGLES_KEPT:
                entry.singles.popitem(last=False)

    def is_cancelled(self, session: str, sequence: int | None) -> bool:
        """Whether a request was cancelled by its sequence number."""
        entry = self._sessions.get(session)
        if entry is None or sequence is None:
            return False
        return sequence < entry.floor or sequence in entry.singles

    def is_late(self, session: str, sequence: int | None, *, latest_wins: bool) -> bool:
        """Whether a request that arrives now is already cancelled or superseded by a newer one."""
        if sequence is None:
            return False
        if self.is_cancelled(session, sequence):
            return True
        if not latest_wins:
            return False
        entry = self._entry(session)
        if sequence < entry.newest:
            return True
        entry.newest = sequence
        return False

    def _entry(self, session: str) -> _Session:
        entry = self._sessions.setdefault(session, _Session())
        self._sessions.move_to_end(session)
        if len(self._sessions) > self._capacity:
            self._sessions.popitem(last=False)
        return entry
