"""A process that reads or exports one video within limits: :func:`main` is started by :mod:`.children`.

Files of strangers meet large libraries here. The process can be killed at any time; nothing that it has written counts
before its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_FILES = 64
_NICE = 10
_KILL_SECONDS = 5


def main() -> None:
    """Reads the request from standard input, and writes the answer to standard output."""
    request = json.load(sys.stdin)
    _restrict(request)
    answer = _answered(request)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # threads of decoders, and what they hold, need no orderly end


def _restrict(request: dict[str, Any]) -> None:
    """Limits that this process cannot raise again, before the file is touched."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:
        os._exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limits = request["limits"]
    processor_seconds = math.ceil(limits["seconds"] * limits["cores"])
    for name, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, processor_seconds),
        (resource.RLIMIT_FSIZE, limits["clip_bytes"]),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # At the lower limit of processor time there is a signal that tells why the process has ended.
        later = _KILL_SECONDS if name == resource.RLIMIT_CPU and bound == most else 0
        resource.setrlimit(name, (bound, bound + later if hard == resource.RLIM_INFINITY else bound))
    with contextlib.suppress(OSError):
        os.nice(_NICE)  # after people's clicks
    with contextlib.suppress(AttributeError, OSError, ValueError):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, mine[-limits["cores"] :])  # decoders start a thread for each


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    from triton_sam.errors import TritonSamError

    try:
        if request["work"] == "decode":
            from triton_sam.service.videos.decode_work import decode

            return decode(request)
        from triton_sam.service.videos.export_work import export

        return export(request)
    except TritonSamError as error:
        return _told(type(error).__name__, str(error), request)
    except MemoryError:
        return _told("TooLarge", "the video takes more memory than is allowed: scale it down", request)
    except OSError as error:
        return _told("TooLarge", f"the video does not fit on the disk ({error.strerror}): cut it", request)
    except Exception as error:
        return _told("InternalError", f"{type(error).__name__}: {error}", request)


def _told(name: str, message: str, request: dict[str, Any]) -> dict[str, Any]:
    """An error without the paths of this machine."""
    for path in (f"{request['folder']}/{request.get('file', '')}", request["folder"]):
        message = message.replace(path, request["name"])
    return {"error": name, "message": message}
