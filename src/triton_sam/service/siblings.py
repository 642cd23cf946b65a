"""The other processes of the same service, as one of them sees them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: Cancels a session's requests in this process, from any thread; returns how many there were.
CancelHere = Callable[[str], int]


class Siblings:
    """A service of one process has none.

    Attributes:
        namespace: put before the names of sessions on the server, the same in all processes; None: any.
        number: of this process.
        count: of all processes.
        folder: a private one, where processes find each other; None if there are no others.
    """

    namespace: str | None = None
    number: int = 0
    count: int = 1
    folder: Path | None = None

    def sequence_numbers(self) -> Iterator[int]:
        """Growing numbers for the requests of a session."""
        return itertools.count(1)

    def serve_cancels(self, cancel: CancelHere | None) -> None:
        """Sets what is called when another process cancels a session; None: nothing."""

    async def cancel(self, session: str) -> int:
        """Cancels a session's requests in the other processes; returns how many there were."""
        return 0


def clock_numbers(clock: Callable[[], int] = time.monotonic_ns) -> Iterator[int]:
    """Growing numbers that also grow from one process to another: the requests of a session may reach any of them.

    All processes of a machine read the same clock, and no number is shared by two requests of one process.
    """
    last = 0
    while True:
        last = max(last + 1, clock())
        yield last
