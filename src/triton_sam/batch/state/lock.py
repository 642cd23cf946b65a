"""One running job a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triton_sam.batch.state.disk_errors import disk_stopped
from triton_sam.errors import InvalidInput

LOCK_FILE = "job.lock"
#: A status asks for the lock for a moment: an attempt that meets it is repeated.
_ATTEMPTS, _PAUSE = 5, 0.05
#: What a file system without locks says.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process whose job runs. Both are unknown for a moment while it starts."""

    pid: int | None = None
    host: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        return f"process {self.pid}" + (f" on {self.host}" if self.host != socket.gethostname() else "")


@contextlib.contextmanager
def job_lock(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        InvalidInput: another job runs in it.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise disk_stopped(folder, error) from error
    try:
        if _taken(descriptor):
            raise InvalidInput(
                f"the job in {folder} is running already in {_holder(descriptor)}: wait for it or end it, "
                "or give another --out"
            )
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            raise disk_stopped(folder, error) from error
        yield
    finally:
        os.close(descriptor)


def running_job(folder: Path) -> Holder | None:
    """The process whose job runs in the folder; None if there is none. Needs to read the folder only."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        if sys.platform == "win32":
            return None
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return None if error.errno in _NO_LOCKS else _holder(descriptor)
        return None
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Takes the lock; True if another process holds it."""
    if sys.platform == "win32":
        log.warning("this system has no lock that is released by a kill: start one job a folder only")
        return False
    import fcntl

    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                log.warning("the file system of the output folder has no locks: start one job a folder only")
                return False
    return True


def _holder(descriptor: int) -> Holder:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(int(content["pid"]), str(content["host"]))
    except (OSError, ValueError, LookupError, TypeError):
        return Holder()
