"""Waiting for what others do, without guessing how long they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds; long, because it is spent only where something is broken.
PATIENCE = 120.0


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE, pause: float = 0.02) -> float:
    """Waits until the condition holds; looks at it again as soon as other threads had their turn.

    Returns:
        Seconds that it took.
    """
    begun = time.monotonic()
    turn = threading.Event()
    while not condition():
        assert time.monotonic() < begun + patience, f"{what}: not within {patience:.0f} s"
        turn.wait(pause)
    return time.monotonic() - begun
