"""How far the job in a folder is, read from another process while it runs or later."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from triton_sam.batch.progress import WINDOW, rest_seconds
from triton_sam.batch.state import database
from triton_sam.batch.state.database import STATE_FILE, sentences
from triton_sam.batch.state.lock import Holder, running_job
from triton_sam.batch.state.store import Failure, counts_of, finished, newest_failures
from triton_sam.errors import InvalidInput

#: Seconds; while a job is set up its state cannot be read.
_BUSY_SECONDS = 2.0
_FAILURES = 20
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How far a job is.

    Attributes:
        is_finished: whether the files that are about all images have been written.
        is_set_up: False while its images are still being listed, or if that was never finished: all counts are 0.
        pid: of the process that runs it, on ``host``; None if none does or it is not known.
        rate: images a second over the last minute; 0 if it does not run.
        rest_seconds: None if it is not known.
        failures: the newest first.
    """

    running: bool
    is_set_up: bool
    of: int = 0
    done: int = 0
    failed: int = 0
    rate: float = 0.0
    rest_seconds: float | None = None
    failures: tuple[Failure, ...] = ()
    pid: int | None = None
    host: str = ""
    is_finished: bool = False

    @property
    def waiting(self) -> int:
        return self.of - self.done - self.failed


def job_status(folder: Path) -> JobStatus:
    """The state of the job in a folder. Changes nothing, and holds nobody up.

    Raises:
        InvalidInput: there is no job, or its state cannot be read.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        raise InvalidInput(f"{folder} has no job: give the folder of its --out")
    holder = running_job(folder)
    nothing = JobStatus(
        holder is not None, False, pid=holder.pid if holder else None, host=holder.host if holder else ""
    )
    # While it is filled, or if that was interrupted, there is a journal to undo it.
    if file.stat().st_size == 0 or file.with_name(f"{file.name}-journal").exists():
        return nothing
    try:
        with sentences(folder):
            return _read(file, lambda connection: _status(connection, folder, holder)) or nothing
    except sqlite3.Error as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror or error}") from error


def _status(connection: sqlite3.Connection, folder: Path, holder: Holder | None) -> JobStatus | None:
    """None if it is not set up."""
    database.check(connection, folder)
    if not database.is_filled(connection):
        return None
    counts = counts_of(connection)
    rate = _rate(connection) if holder is not None else 0.0
    return JobStatus(
        holder is not None,
        True,
        counts.of,
        counts.done,
        counts.failed,
        rate,
        rest_seconds(counts.waiting, rate) if holder is not None else None,
        tuple(newest_failures(connection, _FAILURES)),
        holder.pid if holder is not None else None,
        holder.host if holder is not None else "",
        finished(connection),
    )


def _rate(connection: sqlite3.Connection) -> float:
    row = connection.execute("SELECT started FROM runs ORDER BY number DESC LIMIT 1").fetchone()
    if row is None:
        return 0.0
    now = time.time()
    since = max(row[0], now - WINDOW)
    (count,) = connection.execute("SELECT count(*) FROM items WHERE ended > ?", (since,)).fetchone()
    return float(count / (now - since)) if now > since else 0.0


def _read(file: Path, read: Callable[[sqlite3.Connection], _Read]) -> _Read | None:
    """Reads in one snapshot; None if the file is locked, because it is being set up."""
    try:
        return _tried(file, "mode=ro", read)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return None
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise
    # The write-ahead log needs an index beside it, which cannot be made in a folder that cannot be written.
    log = file.with_name(f"{file.name}-wal")
    if not log.exists() or log.stat().st_size == 0:
        return _tried(file, "immutable=1", read)
    with tempfile.TemporaryDirectory(prefix="triton-sam-status-") as folder:
        for one in (file, log):
            shutil.copyfile(one, Path(folder) / one.name)
        return _tried(Path(folder) / file.name, "mode=rw", read)


def _tried(file: Path, mode: str, read: Callable[[sqlite3.Connection], _Read]) -> _Read:
    with _opened(file, mode) as connection:
        connection.execute("BEGIN")
        return read(connection)


@contextlib.contextmanager
def _opened(file: Path, mode: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
    )
    try:
        database.prepare(connection)
        yield connection
    finally:
        connection.close()
