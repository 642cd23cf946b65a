"""The progress of a request for everything, for somebody who asks again and again what is new."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.driver import Progress
from triton_sam.core.everything.records import rle_record

Answer = Callable[[dict[str, Any]], None]


class Followed:
    """One run. Masks get numbers in the order in which they are found; one that a better mask replaces is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._latest: Progress | None = None
        self._ended = False
        #: What stands for a mask -> its number.
        self._numbers: dict[tuple[object, ...], int] = {}
        self._born: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._waiting: list[tuple[int, Answer]] = []

    def tell(self, progress: Progress) -> None:
        """Takes a step of the run."""
        with self._lock:
            self._version += 1
            self._latest = progress
            shown = {self._number(progress.found, index) for index in range(len(progress.found))}
            for number in self._born:
                if number in shown:
                    self._gone.pop(number, None)
                else:
                    self._gone.setdefault(number, self._version)
            waiting, self._waiting = self._waiting, []
            answers = [(answer, self._news(since)) for since, answer in waiting]
        for answer, news in answers:
            answer(news)

    def ask(self, since: int, answer: Answer) -> None:
        """Calls ``answer`` with what is new after version ``since``, as soon as there is something.

        ``{"version", "done", "of", "count", "masks": [records with RLE], "gone": [numbers]}``, and ``"ended": true``
        after the last step.
        """
        with self._lock:
            if self._version <= since and not self._ended:
                self._waiting.append((since, answer))
                return
            news = self._news(since)
        answer(news)

    def end(self) -> None:
        """The run has ended: its answer has the rest."""
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, []
            answers = [(answer, self._news(since)) for since, answer in waiting]
        for answer, news in answers:
            answer(news)

    def _number(self, found: Candidates, index: int) -> int:
        key = (
            *found.crops[index].tolist(),
            *found.points[index].tolist(),
            float(found.predicted_ious[index]),
            int(found.areas[index]),
        )
        number = self._numbers.setdefault(key, len(self._numbers))
        self._born.setdefault(number, self._version)
        return number

    def _news(self, since: int) -> dict[str, Any]:
        latest = self._latest
        if latest is None:
            return {"version": 0, "done": 0, "of": 0, "count": 0, "masks": [], "gone": [], "ended": self._ended}
        numbers = [self._number(latest.found, index) for index in range(len(latest.found))]
        new = [index for index, number in enumerate(numbers) if self._born[number] > since]
        added = latest.found.take(new).settled()  # all at once, which matters for masks on a device
        masks = [{"id": numbers[index]} | rle_record(added, place) for place, index in enumerate(new)]
        gone = [number for number, version in self._gone.items() if version > since >= self._born[number]]
        return {
            "version": self._version,
            "done": latest.done,
            "of": latest.of,
            "count": len(latest.found),
            "masks": masks,
            "gone": gone,
            "ended": self._ended,
        }
