"""Ends a model's process after tritonserver, also where Triton's own way to do that hangs."""

from __future__ import annotations

import os
import signal
import threading
import time

_LOOK_SECONDS = 1.0
#: Triton's stub notices by itself that its server has ended, and has so long to end. It never does if a thread of ours
#: was asking the server something at that moment, for example whether a request is cancelled.
_GRACE_SECONDS = 5.0


def end_after_parent(look: float = _LOOK_SECONDS, grace: float = _GRACE_SECONDS) -> None:
    """Starts a thread that kills this process some seconds after its parent has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(look)
        time.sleep(grace)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
