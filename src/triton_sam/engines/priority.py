"""Thread priorities: responses before clicks, clicks before encodes, encodes before what no person waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_BACKGROUND_NICENESS = 10
#: Below the threads that accept and refuse requests and report health: these need little CPU time, but at once.
CLICK_NICENESS = 5
#: Of concepts: a person waits for them, but for longer than for a click.
CONCEPT_NICENESS = 8
#: Of prompts that no person waits for, which are decoded beside clicks.
BESIDE_NICENESS = 15


def lower_this_thread(niceness: int = _BACKGROUND_NICENESS) -> None:
    """Lowers the priority of the calling thread.

    On Linux niceness belongs to a thread and is inherited by the threads that it starts, so an encoder whose session
    was created under it yields its cores to a click at once. Without effect elsewhere.
    """
    if hasattr(os, "setpriority"):
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        except OSError:
            return


def run_lowered(action: Callable[[], _T], niceness: int = _BACKGROUND_NICENESS) -> _T:
    """Runs ``action`` on a temporary thread of low priority; returns or raises what it does."""
    outcome: list[_T] = []
    failure: list[BaseException] = []

    def body() -> None:
        lower_this_thread(niceness)
        try:
            outcome.append(action())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="low-priority")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
