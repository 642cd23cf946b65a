"""SIGINT and SIGTERM as a flag.

An exception raised by a signal handler may hit code that holds the lock of an event or a thread, and leave it locked
for ever. A flag that loops poll cannot. A second signal raises KeyboardInterrupt as usual.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which the first SIGINT or SIGTERM only sets :attr:`seen`. For the main thread."""

    def __init__(self) -> None:
        self.seen = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.seen

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
