"""Errors of a disk or a network share: which of them end a job, and what its user reads then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from triton_sam.errors import JobStopped
from triton_sam.files import sync_folder

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: They have nothing to do with one image: the next one would fail too. Not every system has every name.
_OF_THE_DISK = _FULL | {
    getattr(errno, name)
    for name in (
        *("EIO", "ESTALE", "EROFS", "EACCES", "EPERM", "ENXIO", "ENODEV", "EREMOTEIO", "ESHUTDOWN", "EUCLEAN"),
        *("ENOTCONN", "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
        *("ETIMEDOUT", "EMFILE", "ENFILE", "ENOMEM"),
    )
    if hasattr(errno, name)
}
#: What file systems say that cannot wait for a folder: some network shares, some of FUSE.
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})
#: Less is free on a disk that SQLite calls broken because it could not make its index of the journal longer.
_NEARLY_NOTHING = 256 * 1024


def ends_the_job(folder: Path, error: OSError) -> bool:
    """Whether other images would fail with it too. Encoders of images lose the number of an error."""
    return error.errno in _OF_THE_DISK or (error.errno is None and is_nearly_full(folder))


def sync_where_possible(folder: Path) -> None:
    """Waits until a folder's entries are on the disk, if its file system can."""
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def disk_full(folder: Path) -> JobStopped:
    return JobStopped(f"the disk of {folder} is full: make room, then the same command goes on where the job stopped")


def disk_stopped(folder: Path, error: OSError) -> JobStopped:
    """The sentence for an error while writing below a job's folder."""
    if error.errno in _FULL or (error.errno is None and is_nearly_full(folder)):
        return disk_full(folder)
    reason = error.strerror or str(error) or type(error).__name__
    return JobStopped(
        f"{folder} cannot be written ({reason}): when it can be again, the same command goes on where the job stopped"
    )


def is_nearly_full(folder: Path) -> bool:
    try:
        state = os.statvfs(folder)
    except (AttributeError, OSError):  # Windows has none
        return False
    return state.f_bavail * state.f_frsize < _NEARLY_NOTHING
