"""The state of a job: its images, and what has become of each."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.batch.records import Item, ItemPrompt, Work
from triton_sam.batch.state import database
from triton_sam.batch.state.database import DONE, FAILED, STATE_FILE, WAITING, as_text, sentences, transaction
from triton_sam.batch.state.prompt_matching import prompt_of_row
from triton_sam.errors import JobStopped

#: Rows of a stream that are read at a time: no reader keeps the write-ahead log from being emptied.
_ROWS = 500
_LONGEST_REASON = 2000
_CLOSE_SECONDS = 10.0
_UNFINISHED = "DELETE FROM facts WHERE name = 'finished'"
_ITEM = "items.number, items.name, sources.path, items.stem, items.page, items.image_id"
_ITEMS = "items JOIN sources ON sources.number = items.source"


@dataclass(frozen=True, slots=True)
class Ended:
    """What is recorded of an image that has ended: its result is in its file.

    Attributes:
        masks: how many.
        bytes: of the result's file.
        failure: the reason; empty for a result.
    """

    index: int
    masks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An image without a result, and why; ``tries`` is how often it has ended."""

    item: Item
    reason: str
    tries: int

    @property
    def name(self) -> str:
        return database.shown(self.item.name)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many images there are in each state."""

    of: int
    done: int
    failed: int

    @property
    def waiting(self) -> int:
        return self.of - self.done - self.failed


@dataclass(frozen=True, slots=True)
class StateFacts:
    """Facts of a job for its report.

    Attributes:
        created: seconds since 1970.
        runs: how often it was started.
        running_seconds: of all runs together.
        masks, bytes: of all results; ``seconds`` that servers took for them, one after the other.
    """

    counts: Counts
    sources: int
    created: float
    runs: int
    running_seconds: float
    masks: int
    bytes: int
    seconds: float


class JobStore:
    """The state of a job that has been set up. Any thread may use it; what is recorded is on the disk."""

    def __init__(self, folder: Path, writing: sqlite3.Connection) -> None:
        """Takes the connection over."""
        self.folder = folder
        self._writing, self._write_lock = writing, threading.Lock()
        # Another one to read, so that nobody who reads waits for the disk.
        with sentences(folder):
            self._reading, self._read_lock = database.connect_reading(folder), threading.Lock()
        self._file = (folder / STATE_FILE).stat().st_ino
        self._run: int | None = None

    def close(self) -> None:
        """A connection that waits for a disk which does not respond is left to the end of the process."""
        for lock, connection in ((self._read_lock, self._reading), (self._write_lock, self._writing)):
            if lock.acquire(timeout=_CLOSE_SECONDS):
                try:
                    with contextlib.suppress(sqlite3.Error):
                        connection.close()
                finally:
                    lock.release()

    def waiting(self, limit: int, after: int = -1) -> list[Work]:
        """The next images that wait, in order, with their prompts.

        Args:
            after: the index of the last one that was taken.
        """
        rows = self._all(
            f"SELECT {_ITEM} FROM {_ITEMS} WHERE items.state = {WAITING} AND items.number > ?"
            " ORDER BY items.number LIMIT ?",
            (after, limit),
        )
        return [Work(item, self._prompts(item.index)) for item in map(_item, rows)]

    def begin_run(self) -> None:
        """A run begins: for rates, and the time that the job takes in all."""
        now = time.time()
        with self._written():
            self._run = self._writing.execute("INSERT INTO runs (started, ended) VALUES (?, ?)", (now, now)).lastrowid

    def record(self, ended: Sequence[Ended]) -> None:
        """Records how images ended, in one transaction. Their files must be on the disk already.

        Raises:
            JobStopped: the disk is full, or the folder is gone. Nothing of them is recorded then.
        """
        now = time.time()
        rows = [
            (
                FAILED if one.failure else DONE,
                as_text(one.failure[:_LONGEST_REASON]) if one.failure else None,
                *(one.masks, one.bytes, one.seconds, now, one.index),
            )
            for one in ended
        ]
        with self._written():
            self._writing.executemany(
                "UPDATE items SET state = ?, reason = CAST(? AS TEXT), masks = ?, bytes = ?, seconds = ?, ended = ?,"
                " tries = tries + 1 WHERE number = ?",
                rows,
            )
            self._writing.execute("UPDATE runs SET ended = ? WHERE number = ?", (now, self._run))
            self._writing.execute(_UNFINISHED)

    def reset(self, indexes: Iterable[int]) -> None:
        """These images wait again."""
        with self._written():
            self._writing.executemany(
                f"UPDATE items SET state = {WAITING}, reason = NULL, ended = NULL WHERE number = ?",
                ((index,) for index in indexes),
            )
            self._writing.execute(_UNFINISHED)

    def reset_failed(self) -> int:
        """All that failed wait again; returns how many."""
        with self._written():
            self._writing.execute(_UNFINISHED)
            return self._writing.execute(
                f"UPDATE items SET state = {WAITING}, reason = NULL, ended = NULL WHERE state = {FAILED}"
            ).rowcount

    def note_finished(self) -> None:
        """The files that are about all images have been written, and agree with what is recorded."""
        with self._written():
            self._writing.execute("INSERT OR REPLACE INTO facts VALUES ('finished', '1')")

    def is_finished(self) -> bool:
        """Whether that is so: nothing was recorded since."""
        with self._read_lock, sentences(self.folder):
            return finished(self._reading)

    def counts(self) -> Counts:
        with self._read_lock, sentences(self.folder):
            return counts_of(self._reading)

    def failures(self) -> Iterator[Failure]:
        """Images that failed, in index order, in a stream."""
        return map(_failure, self._stream(f"{_ITEM}, items.reason, items.tries", FAILED))

    def done(self) -> Iterator[Item]:
        """Images with a result, in index order, in a stream; the store may be used meanwhile."""
        return map(_item, self._stream(_ITEM, DONE))

    def done_indexes(self) -> Iterator[int]:
        """Their indexes alone, in order, in a stream."""
        return (index for (index,) in self._stream("items.number", DONE))

    def categories(self) -> list[Mapping[str, Any]]:
        """COCO's, as the file of prompts has them."""
        return [json.loads(text) for (text,) in self._all("SELECT content FROM categories ORDER BY number")]

    def facts(self) -> StateFacts:
        known = dict(self._all("SELECT name, value FROM facts"))
        [(runs, running)] = self._all("SELECT count(*), total(ended - started) FROM runs")
        [(masks, size, seconds)] = self._all(
            f"SELECT coalesce(sum(masks), 0), coalesce(sum(bytes), 0), total(seconds) FROM items WHERE state = {DONE}"
        )
        return StateFacts(
            self.counts(), int(known["sources"]), float(known["created"]), runs, running, masks, size, seconds
        )

    def _stream(self, columns: str, state: int) -> Iterator[tuple[Any, ...]]:
        after = -1
        while rows := self._all(
            f"SELECT {columns} FROM {_ITEMS} WHERE items.number > ? AND items.state = {state}"
            " ORDER BY items.number LIMIT ?",
            (after, _ROWS),
        ):
            yield from rows
            after = rows[-1][0]

    def _prompts(self, index: int) -> list[ItemPrompt]:
        return [
            prompt_of_row(row)
            for row in self._all(
                "SELECT x0, y0, x1, y1, points, labels, annotation_id, category_id"
                " FROM prompt_images JOIN prompts ON prompts.image = prompt_images.number"
                " WHERE prompt_images.item = ? ORDER BY prompts.number",
                (index,),
            )
        ]

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._read_lock, sentences(self.folder):
            return self._reading.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """A transaction; JobStopped where it would go to a file that has no name any more."""
        with self._write_lock, sentences(self.folder):
            try:
                is_there = (self.folder / STATE_FILE).stat().st_ino == self._file
            except OSError:
                is_there = False
            if not is_there:
                raise JobStopped(
                    f"{self.folder / STATE_FILE} is gone: bring the folder back, then the same command goes on"
                )
            with transaction(self._writing):
                yield


def finished(connection: sqlite3.Connection) -> bool:
    """See :meth:`JobStore.is_finished`."""
    return connection.execute("SELECT 1 FROM facts WHERE name = 'finished'").fetchone() is not None


def counts_of(connection: sqlite3.Connection) -> Counts:
    """Of a job that has been set up."""
    (of,) = connection.execute("SELECT value FROM facts WHERE name = 'items'").fetchone()
    waiting, failed = (
        connection.execute(f"SELECT count(*) FROM items WHERE state = {state}").fetchone()[0]
        for state in (WAITING, FAILED)
    )
    return Counts(int(of), int(of) - waiting - failed, failed)


def newest_failures(connection: sqlite3.Connection, limit: int) -> list[Failure]:
    rows = connection.execute(
        f"SELECT {_ITEM}, items.reason, items.tries FROM {_ITEMS} WHERE items.state = {FAILED}"
        " ORDER BY items.ended DESC LIMIT ?",
        (limit,),
    )
    return [_failure(row) for row in rows]


def _item(row: Sequence[Any]) -> Item:
    index, name, path, stem, page, image_id = row
    return Item(index, name, Path(path), stem, page, image_id)


def _failure(row: Sequence[Any]) -> Failure:
    return Failure(_item(row[:6]), row[6], row[7])
