"""Temporary folders that are removed even if their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ALIVE = "alive"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A folder of this process alone; those of the same prefix whose processes were killed are removed first."""
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), (old / _ALIVE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as its process runs
            shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    try:
        with (folder / _ALIVE).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            folder = folder.rename(folder.with_name(folder.name[1:]))  # only now others may look whether it is locked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
