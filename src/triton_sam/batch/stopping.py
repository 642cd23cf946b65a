"""The wish that a job ends before it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from triton_sam.errors import JobInterrupted

_T = TypeVar("_T")


class StopRequest:
    """Given to a job that runs, by another thread or by a handler of Ctrl-C.

    Numbers alone: a handler runs in the middle of whatever the main thread does, and may not wait for a lock.
    """

    def __init__(self) -> None:
        self._asked = 0

    def ask(self) -> bool:
        """The first time: nothing new is begun, what is in flight is finished. The second time: it is dropped.

        Returns:
            Whether it was the first time.
        """
        self._asked += 1
        return self._asked == 1

    @property
    def is_asked(self) -> bool:
        return self._asked > 0

    @property
    def drops(self) -> bool:
        """Whether what is in flight is not waited for either."""
        return self._asked > 1

    def checked(self, entries: Iterable[_T]) -> Iterator[_T]:
        """The same entries; raises JobInterrupted once a stop is asked."""
        for entry in entries:
            if self.is_asked:
                raise JobInterrupted("stopped: the same command goes on")
            yield entry
