"""The sources of a job as they were, against those that are there now."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable

from triton_sam.batch.records import Source
from triton_sam.batch.state.database import as_text, shown, transaction
from triton_sam.errors import InvalidInput

_SHOWN = 3
_PATHS = "paths_digest"


class SourceDigest:
    """Equal for sources with equal names, sizes and times of change, in the same order."""

    def __init__(self) -> None:
        self._content, self._paths = hashlib.sha256(), hashlib.sha256()
        self._count = 0

    def add(self, source: Source) -> None:
        self._content.update(as_text(source.name) + b"\0%d %d\n" % (source.size, source.mtime_ns))
        self._paths.update(as_text(str(source.path)) + b"\0")
        self._count += 1

    @property
    def facts(self) -> dict[str, str]:
        """To keep with the job. The paths may change: the same files, mounted elsewhere."""
        return {
            "sources": str(self._count),
            "sources_digest": self._content.hexdigest(),
            _PATHS: self._paths.hexdigest(),
        }


def compare_sources(connection: sqlite3.Connection, sources: Callable[[], Iterable[Source]]) -> None:
    """Reads the sources once, and a second time only if something has changed.

    Raises:
        InvalidInput: names what was added, removed or changed.
    """
    known = dict(connection.execute("SELECT name, value FROM facts"))
    digest = SourceDigest()
    for source in sources():
        digest.add(source)
    changed = {name for name, value in digest.facts.items() if known.get(name) != value}
    if changed - {_PATHS}:
        _name_changes(connection, sources())
    if changed:  # of their order or their paths only
        _update(connection, sources)


def _update(connection: sqlite3.Connection, sources: Callable[[], Iterable[Source]]) -> None:
    digest = SourceDigest()
    with transaction(connection):
        connection.execute("CREATE INDEX source_names ON sources (name)")
        for source in sources():
            digest.add(source)
            connection.execute(
                "UPDATE sources SET path = CAST(? AS TEXT) WHERE name = CAST(? AS TEXT)",
                (as_text(str(source.path)), as_text(source.name)),
            )
        connection.execute("DROP INDEX source_names")
        connection.executemany("REPLACE INTO facts VALUES (?, ?)", digest.facts.items())


def _name_changes(connection: sqlite3.Connection, sources: Iterable[Source]) -> None:
    connection.execute("CREATE TEMP TABLE now (name TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER) WITHOUT ROWID")
    try:
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT OR IGNORE INTO temp.now VALUES (CAST(? AS TEXT), ?, ?)",
            ((as_text(source.name), source.size, source.mtime_ns) for source in sources),
        )
        connection.execute(
            "CREATE TEMP TABLE before (name TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER) WITHOUT ROWID"
        )
        connection.execute("INSERT INTO temp.before SELECT name, size, mtime_ns FROM main.sources")
        connection.execute("COMMIT")
        added = _named(connection, "FROM temp.now WHERE name NOT IN (SELECT name FROM temp.before)")
        removed = _named(connection, "FROM temp.before WHERE name NOT IN (SELECT name FROM temp.now)")
        changed = _named(
            connection,
            "FROM temp.now JOIN temp.before USING (name)"
            " WHERE (now.size, now.mtime_ns) != (before.size, before.mtime_ns)",
        )
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        for table in ("now", "before"):
            connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
    found = [
        f"{names} {verb}" for names, verb in ((added, "added"), (removed, "removed"), (changed, "changed")) if names
    ]
    if found:  # else only their order differs
        raise InvalidInput(
            f"the inputs are not those that the job was begun with ({'; '.join(found)}): "
            "restore them, or give another --out"
        )


def _named(connection: sqlite3.Connection, what: str) -> str:
    """``a.png, b.png and 7 more were``; empty if there are none."""
    (count,) = connection.execute(f"SELECT count(*) {what}").fetchone()
    rows = connection.execute(f"SELECT name {what} ORDER BY name LIMIT ?", (_SHOWN,))
    names = ", ".join(shown(name) for (name,) in rows)
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    return f"{names}{more} {'was' if count == 1 else 'were'}" if count else ""
