"""Which frames of a video have been tracked, and in which direction, in a few numbers for any length of video."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class FrameRanges:
    """Frame number -> a direction, kept as ranges: a video of a million frames that was tracked once is one range."""

    def __init__(self) -> None:
        #: First frames, in order, and for each the last frame and the direction.
        self._firsts: list[int] = []
        self._rest: list[tuple[int, bool]] = []

    def get(self, frame: int) -> bool | None:
        """Whether a frame was last tracked backward; None if it was not tracked."""
        place = bisect.bisect_right(self._firsts, frame) - 1
        if place < 0 or frame > self._rest[place][0]:
            return None
        return self._rest[place][1]

    def set(self, frame: int, *, reverse: bool) -> None:
        """Notes that a frame was tracked."""
        if self.get(frame) is reverse:
            return
        self.discard(frame)
        place = bisect.bisect_right(self._firsts, frame)
        self._firsts.insert(place, frame)
        self._rest.insert(place, (frame, reverse))
        self._join(place)
        self._join(place - 1)

    def set_range(self, first: int, last: int, *, reverse: bool) -> None:
        """Notes that frames were tracked that come after all that are known."""
        self._firsts.append(first)
        self._rest.append((last, reverse))

    def discard(self, frame: int) -> None:
        """Forgets that a frame was tracked."""
        place = bisect.bisect_right(self._firsts, frame) - 1
        if place < 0 or frame > self._rest[place][0]:
            return
        first, (last, reverse) = self._firsts.pop(place), self._rest.pop(place)
        for start, end in ((frame + 1, last), (first, frame - 1)):
            if start <= end:
                self._firsts.insert(place, start)
                self._rest.insert(place, (end, reverse))

    def __iter__(self) -> Iterator[tuple[int, int, bool]]:
        """(first, last, reverse) of each range, in order."""
        for first, (last, reverse) in zip(self._firsts, self._rest, strict=True):
            yield first, last, reverse

    def __len__(self) -> int:
        return len(self._firsts)

    def _join(self, place: int) -> None:
        """Joins a range with the next one if they touch and have one direction."""
        if place < 0 or place + 1 >= len(self._firsts):
            return
        (last, reverse), (end, other) = self._rest[place], self._rest[place + 1]
        if last + 1 == self._firsts[place + 1] and reverse == other:
            self._rest[place] = (end, reverse)
            del self._firsts[place + 1], self._rest[place + 1]
