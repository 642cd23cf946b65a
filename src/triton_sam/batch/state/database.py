"""The SQLite file of a job: its tables, how it is opened, its text, and its errors in plain sentences."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from triton_sam.batch.state.disk_errors import disk_full, is_nearly_full
from triton_sam.errors import InvalidInput, JobStopped, TritonSamError

STATE_FILE = "job.sqlite3"
#: Values of ``items.state``. They stand in the file: do not change them.
WAITING, DONE, FAILED = 0, 1, 2

#: Of this layout; a later one has a greater number.
_VERSION = 1
#: "tsjb": tells our files from others.
_APPLICATION = 0x74736A62
#: Others only read, and for moments.
_BUSY_SECONDS = 30.0

_TABLES = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    """CREATE TABLE sources (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL, path TEXT NOT NULL,
        size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL)""",
    # NOCASE: the folder may lie on a file system to which A.png and a.png are one file.
    """CREATE TABLE items (
        number INTEGER PRIMARY KEY, source INTEGER NOT NULL, name TEXT NOT NULL UNIQUE, page INTEGER,
        stem TEXT NOT NULL UNIQUE COLLATE NOCASE, image_id INTEGER, state INTEGER NOT NULL DEFAULT 0, reason TEXT,
        masks INTEGER, bytes INTEGER, seconds REAL, tries INTEGER NOT NULL DEFAULT 0, ended REAL)""",
    """CREATE TABLE prompt_images (
        number INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, tail TEXT NOT NULL,
        image_id INTEGER, item INTEGER)""",
    """CREATE TABLE prompts (
        number INTEGER PRIMARY KEY, image INTEGER NOT NULL, x0 REAL, y0 REAL, x1 REAL, y1 REAL,
        points TEXT, labels TEXT, annotation_id INTEGER, category_id INTEGER)""",
    "CREATE TABLE categories (number INTEGER PRIMARY KEY, content TEXT NOT NULL)",
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, started REAL NOT NULL, ended REAL NOT NULL)",
)
#: Made when the tables are filled. Each holds the rows of one state only, so that counting is short.
_INDEXES = (
    f"CREATE INDEX waiting_items ON items (number) WHERE state = {WAITING}",
    f"CREATE INDEX failed_items ON items (ended) WHERE state = {FAILED}",
    "CREATE INDEX ended_items ON items (ended) WHERE ended IS NOT NULL",
    "CREATE INDEX images_of_items ON prompt_images (item)",
    "CREATE INDEX prompts_of_images ON prompts (image)",
)

log = logging.getLogger(__name__)


def connect(folder: Path) -> sqlite3.Connection:
    """The state of a job for writing, made if it is missing; what is committed is on the disk.

    One thread at a time may use it. Transactions are the caller's, with :func:`transaction`.

    Raises:
        InvalidInput: the file is not the state of a job, or of a newer version.
        JobStopped: the folder cannot be written, or the disk is full.
    """
    with sentences(folder):
        connection = sqlite3.connect(
            folder / STATE_FILE, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            prepare(connection)
            connection.execute("PRAGMA synchronous = FULL")
            check(connection, folder)
        except BaseException:
            connection.close()
            raise
    return connection


def connect_reading(folder: Path) -> sqlite3.Connection:
    """A connection that only reads, beside one that writes. One thread at a time may use it."""
    connection = sqlite3.connect(
        folder / STATE_FILE, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    prepare(connection)
    connection.execute("PRAGMA query_only = ON")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Text as :func:`as_text` stores it."""
    connection.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")


def check(connection: sqlite3.Connection, folder: Path) -> None:
    """InvalidInput if the file is another program's, or a newer version's."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != _APPLICATION and (application or tables):
        raise _not_ours(folder)
    if version > _VERSION:
        raise InvalidInput(
            f"the job in {folder} was begun by a newer version of triton-sam: update this one, or give another --out"
        )


def is_filled(connection: sqlite3.Connection) -> bool:
    """Whether a job was set up to the end: that is one transaction."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone() is not None


def make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def make_indexes(connection: sqlite3.Connection) -> None:
    for statement in _INDEXES:
        connection.execute(statement)


def write_ahead(connection: sqlite3.Connection) -> None:
    """From now on others can read while this process writes."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        log.warning("the file system has no shared memory for SQLite: records take longer (journal mode %s)", mode)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside is recorded, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # it may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def sentences(folder: Path) -> Iterator[None]:
    """Turns what the file itself causes into our exceptions; errors in our statements stay what they are."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        told = _sentence(folder, str(error))
        if told is None:
            raise
        raise told from error


def as_text(value: str) -> bytes:
    """The bytes of a name, for ``CAST(? AS TEXT)``: names of files may have bytes that are not UTF-8."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other half characters, from a JSON file
        return value.encode("utf-8", "surrogatepass")


def shown(name: str) -> str:
    """A name that every terminal and file takes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _sentence(folder: Path, message: str) -> TritonSamError | None:
    file = folder / STATE_FILE
    if "disk is full" in message or ("disk I/O error" in message and is_nearly_full(folder)):
        return disk_full(folder)
    if "not a database" in message:
        return _not_ours(folder)
    if "malformed" in message:
        return InvalidInput(f"{file} is damaged: begin again with another --out")
    if "locked" in message:
        return JobStopped(f"another program holds {file}: end it, then the same command goes on")
    if any(words in message for words in ("disk I/O error", "readonly", "unable to open")):
        return JobStopped(
            f"{file} cannot be written ({message}): "
            "when it can be again, the same command goes on where the job stopped"
        )
    return None


def _not_ours(folder: Path) -> InvalidInput:
    return InvalidInput(f"{folder / STATE_FILE} is not the state of a job: give another --out")
