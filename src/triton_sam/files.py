"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which replaces ``path`` when all of it is on the disk; if anything fails, nothing is left.

    The folder's entry is on the disk after :func:`sync_folder` only. One process writes to ``path`` at a time.
    """
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Waits until a folder's entries are on the disk, where the system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
