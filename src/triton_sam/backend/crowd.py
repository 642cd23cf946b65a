"""Whether one user clicks alone. His click need not wait until another thread has woken up; those of a crowd are
better collected and decoded together."""

from __future__ import annotations

from collections.abc import Hashable

#: After a sign of a crowd, for how long it is taken for one.
CROWD_SECONDS = 0.05
#: Who comes back so soon, with somebody else in between, shares the server. Longer than a round of a busy crowd that is
#: served one by one: with less, a crowd that has become slow would be taken for single users and stay slow.
BACK_SECONDS = 0.5
#: Who comes so soon after an answer has waited for it: a client cannot take an answer and send again in this time.
TURNAROUND_SECONDS = 0.00015
_MOST_REMEMBERED = 256


class Crowd:
    """Watches who clicks and when; all times in seconds of one clock. Used under its owner's lock."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, float] = {}
        self._last: Hashable = None
        self._until = float("-inf")
        self._left = float("-inf")

    def comes(self, who: Hashable, now: float) -> bool:
        """Notes a click; True where nobody else is there.

        Args:
            who: the session and the image: clicks of others are told by another of both.
        """
        changed = who != self._last
        if changed and now - self._seen.get(who, float("-inf")) < BACK_SECONDS:
            self._until = now + CROWD_SECONDS
        if now - self._left < TURNAROUND_SECONDS:
            self._until = now + CROWD_SECONDS
        if changed and len(self._seen) >= _MOST_REMEMBERED:
            self._seen.clear()
        self._seen[who] = now
        self._last = who
        return now >= self._until

    def answered(self, now: float) -> None:
        """Notes that a click that was alone has its answer, and that others can come in again."""
        self._left = now
