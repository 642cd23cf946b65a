"""Starts a program that never outlives this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from triton_sam.errors import ServerError

#: Runs before exec in a separate process, because a preexec function would run in a copy of a threaded process.
#: setpgid: a Ctrl-C at the terminal reaches only us, and we stop the server in order. No setsid: Linux divides the CPU
#: between two sessions regardless of niceness, and the models would delay /health.
#: prctl(PR_SET_PDEATHSIG, SIGKILL), then a check whether the parent died before that call.
#: RLIMIT_STACK: Triton's HTTP server parses bodies that curl labels as forms on the stack, and with the usual 8 MiB a
#: large base64 image crashes the whole server.
_LAUNCHER = """
import ctypes, os, resource, sys
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
_, hard = resource.getrlimit(resource.RLIMIT_STACK)
wanted = 512 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_STACK, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(command: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts ``command``; the kernel kills it when the calling thread ends, however that happens."""
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    try:
        return subprocess.Popen(
            [*launcher, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    except OSError as error:
        raise ServerError(f"tritonserver cannot be started ({error.strerror})") from None
