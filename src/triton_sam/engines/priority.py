"""Answers before clicks before encodes, on the processor too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_BACKGROUND_NICENESS = 10
#: Behind the threads that take requests in, refuse them and tell how things are: these do little, and at once.
CLICK_NICENESS = 5


def lower_this_thread(niceness: int = _BACKGROUND_NICENESS) -> None:
    """Puts the calling thread behind the others of this machine.

    On Linux niceness belongs to the thread and is inherited by the threads that it starts, so an encoder whose
    session was built under it yields its cores to a click at once. Without effect elsewhere.
    """
    if hasattr(os, "setpriority"):
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        except OSError:
            return


def run_lowered(action: Callable[[], _T], niceness: int = _BACKGROUND_NICENESS) -> _T:
    """Runs ``action`` on a short-lived thread of low priority and hands back what it returns or raises."""
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
