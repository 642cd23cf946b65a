"""Bounded queues that serve their sessions in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within a session, round robin between sessions: a busy session delays only itself.

    Not thread-safe; the scheduler's lock guards it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._size = 0
        self._sessions: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._kept: Hashable = None

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        return self._size >= self.capacity

    def put(self, item: T, session: Hashable) -> None:
        """Appends to the session's own line. The caller has checked :attr:`full`."""
        self._sessions.setdefault(session, deque()).append(item)
        self._size += 1

    def pop(self) -> T:
        """Removes and returns the next item of the next session, which then goes to the end of the round."""
        item = self.pop_if(lambda _: True)
        if item is None:
            raise IndexError("nothing waits")
        return item

    def pop_if(self, wanted: Callable[[T], bool]) -> T | None:
        """As :meth:`pop`, of the next session whose next item is ``wanted``; None if there is none."""
        for session, line in self._sessions.items():
            if line and wanted(line[0]):
                self._size -= 1
                item = line.popleft()
                if line:
                    self._sessions.move_to_end(session)
                else:
                    del self._sessions[session]
                return item
        return None

    def keep_turn(self, session: Hashable) -> None:
        """Lets a session keep its turn although its line may become empty.

        A session that replaces its own request again and again would otherwise go to the end of the round each time
        and never be served.
        """
        if session in self._sessions:
            self._kept = session

    def release_turn(self, session: Hashable) -> None:
        """Ends :meth:`keep_turn` and removes the session if its line is empty."""
        if self._kept == session:
            self._kept = None
            if not self._sessions.get(session, True):
                del self._sessions[session]

    def take(self, wanted: Callable[[T], bool], limit: int | None = None) -> list[T]:
        """Removes and returns up to ``limit`` items that are ``wanted``, in the order of the sessions' turns."""
        taken: list[T] = []
        for session, line in list(self._sessions.items()):
            kept: deque[T] = deque()
            for item in line:
                if (limit is None or len(taken) < limit) and wanted(item):
                    taken.append(item)
                else:
                    kept.append(item)
            if kept or session == self._kept:
                self._sessions[session] = kept
            else:
                del self._sessions[session]
        self._size -= len(taken)
        return taken


def background_share(capacity: int) -> int:
    """How many of ``capacity`` places background work may take."""
    return max(1, capacity // 2)


class PeopleFirstQueue(Generic[T]):
    """Two fair queues: what people wait for, and background work, which is served when nobody waits.

    Background work takes no place from people: it has places of its own, half as many.
    """

    def __init__(self, capacity: int) -> None:
        self.people: FairQueue[T] = FairQueue(capacity)
        self.background: FairQueue[T] = FairQueue(background_share(capacity))

    def __len__(self) -> int:
        return len(self.people) + len(self.background)

    def refusal(self, *, background: bool) -> int | None:
        """How many items wait already if no further one may; None if one may."""
        if background:
            is_full = self.background.full or len(self) >= self.people.capacity
            return len(self) if is_full else None
        return len(self.people) if self.people.full else None

    def put(self, item: T, session: Hashable, *, background: bool) -> None:
        """Appends to the session's own line. The caller has checked :meth:`refusal`."""
        (self.background if background else self.people).put(item, session)

    def promote(self, item: T, session: Hashable) -> None:
        """Moves an item of the background, if it waits there, to those that people wait for."""
        if self.background.take(lambda other: other is item):
            self.people.put(item, session)

    def keep_turn(self, session: Hashable) -> None:
        """See :meth:`FairQueue.keep_turn`."""
        self.people.keep_turn(session)
        self.background.keep_turn(session)

    def release_turn(self, session: Hashable) -> None:
        """See :meth:`FairQueue.release_turn`."""
        self.people.release_turn(session)
        self.background.release_turn(session)

    def take(self, wanted: Callable[[T], bool]) -> list[T]:
        """Removes and returns all items that are ``wanted``."""
        return self.people.take(wanted) + self.background.take(wanted)
