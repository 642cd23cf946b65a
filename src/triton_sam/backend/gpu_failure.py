"""Ends a process whose GPU has failed: it cannot compute any more, and the process that replaces it can."""

from __future__ import annotations

import functools
import logging
import os
import threading

log = logging.getLogger(__name__)
#: What the driver says when a process has lost its context for good. Other errors concern one call.
_FATAL = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "launch timed out",
    "uncorrectable ECC error",
    "hardware stack error",
    "no CUDA-capable device",
    "device is lost",
    "unknown error",
)
#: So that answers that are under way still go out.
_GRACE_SECONDS = 0.5


def is_fatal(error: BaseException) -> bool:
    """Whether nothing on this process's GPU can succeed after the error."""
    text = str(error)
    return "CUDA error" in text and any(sign in text for sign in _FATAL)


@functools.cache  # once, however many calls fail meanwhile
def end_soon() -> None:
    """Ends this process in a moment; the supervisor or a spare worker takes over, as after a kill."""
    log.critical("the GPU failed, so this process ends")
    timer = threading.Timer(_GRACE_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
