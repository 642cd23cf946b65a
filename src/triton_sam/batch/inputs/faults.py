"""What an error of the operating system means for a job: one image fails, or the job stops until a disk is back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from triton_sam.errors import InvalidInput, JobStopped, TritonSamError

_NAMES = ("EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH")
#: A disk or a network share that does not respond. Not every system has all of them.
_GONE = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def fault_of_file(error: OSError, path: Path) -> TritonSamError:
    """InvalidInput for a file that cannot be read, JobStopped if that is no fault of the file."""
    folder = path.parent
    if error.errno == errno.EIO and _state_of(folder) == "":  # a bad sector; of a share that is gone nothing is read
        return InvalidInput(f"cannot read {path}: {reason_of(error)}")
    stopped = stopped_by(error, path)
    if stopped is not None:
        return stopped
    if error.errno not in _MISSING:
        return InvalidInput(f"cannot read {path}: {reason_of(error)}")
    state = _state_of(folder)
    if isinstance(state, JobStopped):
        return state
    if state:  # an unmounted share leaves an empty folder
        return JobStopped(
            f"the folder {folder} is {state}: is its disk or network share mounted? Then run the same command again"
        )
    return InvalidInput(f"{path} has vanished since the job began: put it back, or leave it out of a new job")


def fault_of_folder(error: OSError, folder: Path) -> TritonSamError:
    """The same for a folder that cannot be listed."""
    return stopped_by(error, folder) or InvalidInput(
        f"cannot read the folder {folder} ({reason_of(error)}): give yourself the right to read it, or leave it out"
    )


def stopped_by(error: OSError, path: Path) -> JobStopped | None:
    """JobStopped if the error is one of a disk or share that does not respond."""
    if error.errno not in _GONE:
        return None
    return JobStopped(
        f"cannot read {path} ({reason_of(error)}), so its disk or network share does not work: "
        "run the same command again when it does"
    )


def reason_of(error: OSError | ValueError) -> str:
    """The system's few words, without the path."""
    return str(getattr(error, "strerror", None) or error)


def _state_of(folder: Path) -> str | JobStopped:
    """``gone``, ``empty`` or nothing."""
    try:
        with os.scandir(folder) as entries:
            return "" if next(entries, None) is not None else "empty"
    except OSError as error:
        return stopped_by(error, folder) or ("gone" if error.errno in _MISSING else "")
