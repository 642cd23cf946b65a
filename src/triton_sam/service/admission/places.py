"""How many requests are worked on, how many still come in, and how much their bodies take."""

from __future__ import annotations

from collections.abc import Mapping

from triton_sam.errors import QueueFull

_ARRIVING_PER_PLACE = 4


class Places:
    """What one service may do at a time. Belongs to the event loop."""

    def __init__(self, at_a_time: int, at_a_time_at: Mapping[str, int], *, most_bytes: int) -> None:
        """
        Args:
            at_a_time_at: path -> how many of ``at_a_time`` its requests may be, so that the others have the rest.
            most_bytes: of all bodies together, from when they come until they are answered.
        """
        self._at_a_time = at_a_time
        self._at_a_time_at = dict(at_a_time_at)
        self._working_at = dict.fromkeys(self._at_a_time_at, 0)
        self._most_arriving = _ARRIVING_PER_PLACE * at_a_time
        self._working = 0
        self._arriving = 0
        self._most_bytes = most_bytes
        self.bytes_held = 0

    def count(self, path: str, *, working: int = 0, arriving: int = 0) -> None:
        """Adds to what is going on; QueueFull, and nothing is added, where that would be too much."""
        if working > 0:
            self.check(path)
        if arriving > 0 and self._arriving + arriving > self._most_arriving:
            raise QueueFull(f"{self._most_arriving} requests are being sent already: try again in a moment")
        self._working += working
        self._arriving += arriving
        if path in self._working_at:
            self._working_at[path] += working

    def hold(self, nbytes: int) -> None:
        """Adds to what bodies take; QueueFull, and nothing is added, where that would be too much."""
        if self.bytes_held + nbytes > self._most_bytes:
            taken = f"{self.bytes_held:,} of {self._most_bytes:,} bytes"
            raise QueueFull(f"the bodies of other requests take {taken}: try again in a moment")
        self.bytes_held += nbytes

    def let_go(self, nbytes: int) -> None:
        self.bytes_held -= nbytes

    def check(self, path: str) -> None:
        """QueueFull where nothing more can be worked on now."""
        most_at_path = self._at_a_time_at.get(path)
        if most_at_path is not None and self._working_at[path] >= most_at_path:
            raise QueueFull(f"{most_at_path} requests to {path} are being worked on already: try again in a moment")
        if self.all_taken:
            raise self.refusal()

    @property
    def all_taken(self) -> bool:
        """Whether nobody can be let in, wherever he wants to go."""
        return self._working >= self._at_a_time

    def refusal(self) -> QueueFull:
        """What is said while :attr:`all_taken`."""
        return QueueFull(f"{self._at_a_time} requests are being worked on already: try again in a moment")
