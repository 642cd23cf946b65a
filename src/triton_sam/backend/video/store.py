"""The open sessions of one device: how many, how large, and which one goes if there is no room."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator

from triton_sam.backend.video.limits import VideoLimits
from triton_sam.backend.video.line import Line
from triton_sam.errors import SessionExpired, Unavailable


class SessionStore:
    """Not thread-safe; the scheduler's lock guards it.

    Attributes:
        expired: number of sessions that ended by themselves: idle for too long, or dropped for others.
        freed: bytes of the memories of sessions that have ended, since somebody has set this to 0.
    """

    def __init__(self, limits: VideoLimits) -> None:
        self._limits = limits
        #: The least recently used first.
        self._lines: OrderedDict[str, Line] = OrderedDict()
        self.expired = 0
        self.freed = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._lines.values()))

    @property
    def busy(self) -> list[Line]:
        """Those with steps, the least recently used first."""
        return [line for line in self._lines.values() if not line.is_idle]

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    @property
    def bytes(self) -> int:
        """Of all sessions."""
        return sum(line.bytes for line in self._lines.values())

    def find(self, name: str) -> Line | None:
        """A session, which becomes the most recently used one."""
        line = self._lines.get(name)
        if line is not None:
            self._lines.move_to_end(name)
        return line

    def require(self, name: str) -> Line:
        """As :meth:`find`; SessionExpired if there is none."""
        line = self.find(name)
        if line is None:
            raise unknown_session(name)
        return line

    def holds(self, line: Line) -> bool:
        """Whether this very session is open, and not another one of its name."""
        return self._lines.get(line.name) is line

    def open(self, name: str, first: int) -> Line:
        """A new session; Unavailable if there is no room for one more.

        Args:
            first: number of the step that opens it.
        """
        while len(self._lines) >= self._limits.sessions:
            if not self._drop_idle():
                raise Unavailable(
                    f"{len(self._lines)} videos are being tracked already: try again later, "
                    "or raise TRITON_SAM_VIDEO_SESSIONS"
                )
        line = self._lines[name] = Line(name, first)
        return line

    def close(self, line: Line) -> None:
        """Forgets a session."""
        if self.holds(line):
            del self._lines[line.name]
            self.freed += line.memory_bytes

    def has_room(self, more: int = 0, keep: Line | None = None) -> bool:
        """Whether all sessions fit into their memory; the least recently used idle ones are dropped for that.

        Args:
            more: bytes besides theirs.
            keep: the session that asks, which is not dropped.
        """
        while self.bytes + more > self._limits.total_bytes:
            if not self._drop_idle(keep):
                return False
        return True

    def expire(self) -> float | None:
        """Drops sessions that were idle for too long. Returns when the next one will have been; None if none is."""
        now, seconds = time.perf_counter(), self._limits.idle_seconds
        ends: float | None = None
        for line in self:
            if not line.is_idle:
                continue
            end = line.used + seconds
            if end <= now:
                self._drop(line)
            elif ends is None or end < ends:
                ends = end
        return ends

    def clear(self) -> None:
        """Forgets all sessions."""
        self._lines.clear()

    def _drop_idle(self, keep: Line | None = None) -> bool:
        """Drops the idle session that was not used for the longest time. Returns whether there was one."""
        line = next((line for line in self._lines.values() if line.is_idle and line is not keep), None)
        if line is not None:
            self._drop(line)
        return line is not None

    def _drop(self, line: Line) -> None:
        self.close(line)
        self.expired += 1


def unknown_session(name: str) -> SessionExpired:
    """The answer to a step of a session that is not here."""
    return SessionExpired(
        f"the video session {name[:40]!r} is unknown here or has expired: open it again with its newest state"
    )
