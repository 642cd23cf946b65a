"""Waits for a condition without guessing how long it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds. Long, because the time is only spent if something is broken.
PATIENCE = 120.0


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE, pause: float = 0.02) -> float:
    """Waits until the condition holds and checks it every ``pause`` seconds; fails after ``patience`` seconds.

    Returns:
        Seconds waited.
    """
    begun = time.monotonic()
    turn = threading.Event()
    while not condition():
        assert time.monotonic() < begun + patience, f"{what}: not within {patience:.0f} s"
        turn.wait(pause)
    return time.monotonic() - begun
