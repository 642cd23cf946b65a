"""Sets the state of a job up: sources, items and prompts, in one transaction and in a stream."""

from __future__ import annotations

import errno
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from triton_sam.batch.records import PromptSource, Source
from triton_sam.batch.state import database
from triton_sam.batch.state.database import as_text, shown
from triton_sam.batch.state.prompt_matching import fill_prompts
from triton_sam.batch.state.source_list import SourceDigest
from triton_sam.errors import InvalidInput, JobStopped

#: Bytes, for sorting indexes.
_CACHE = 64 << 20
#: Between two calls of ``on_found``.
_OFTEN = 500
#: What a file can say that is not an image; other errors may be the share's, and go when it comes back.
_OF_THE_FILE = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job works on. Everything is called anew where it is needed, and read in a stream.

    Attributes:
        sources: always in the same order.
        pages: of a source: ``[None]`` for a plain image. Only asked when a job is set up.
        prompts: None in everything mode.
        on_found: told how many images have been found so far; what it raises ends the set-up.
    """

    sources: Callable[[], Iterable[Source]]
    pages: Callable[[Source], Sequence[int | None]]
    prompts: Callable[[], PromptSource] | None = None
    on_found: Callable[[int], object] | None = None


def fill(connection: sqlite3.Connection, given: JobInput, facts: dict[str, str]) -> None:
    """Sets a job up, or leaves nothing of it.

    Args:
        facts: to keep with it.

    Raises:
        InvalidInput: there are no images; prompts without an image; two images with one name.
    """
    # Nothing is there yet that a journal would have to save, so it is short; a write-ahead log would hold all of it.
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA cache_size = -{_CACHE >> 10}")
    try:
        with database.transaction(connection):
            database.make_tables(connection)
            digest, count = _fill_items(connection, given)
            if given.prompts is not None:
                fill_prompts(connection, given.prompts())
            database.make_indexes(connection)
            facts = facts | digest.facts | {"items": str(count)}
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
    finally:
        connection.execute("PRAGMA cache_size = -2000")


def _fill_items(connection: sqlite3.Connection, given: JobInput) -> tuple[SourceDigest, int]:
    digest = SourceDigest()
    index = 0
    for number, source in enumerate(given.sources()):
        digest.add(source)
        connection.execute(
            "INSERT INTO sources VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?)",
            (number, as_text(source.name), as_text(str(source.path)), source.size, source.mtime_ns),
        )
        for page in _pages(given, source):
            name = source.name if page is None else f"{source.name}[{page}]"
            _add_item(connection, (index, number, name, page))
            index += 1
            if given.on_found is not None and index % _OFTEN == 0:
                given.on_found(index)
    if not index:
        raise InvalidInput("there are no images in the inputs: give folders or files that have some")
    if given.on_found is not None:
        given.on_found(index)
    return digest, index


def _pages(given: JobInput, source: Source) -> Sequence[int | None]:
    """A file that cannot be read is one image: it fails when its turn comes, with the reason."""
    try:
        return given.pages(source) or (None,)
    except InvalidInput:
        return (None,)
    except OSError as error:
        if error.errno in _OF_THE_FILE:
            return (None,)
        raise JobStopped(
            f"{shown(str(source.path))} cannot be read ({error.strerror or error}): "
            "give the same command when it can be"
        ) from error


def _add_item(connection: sqlite3.Connection, row: tuple[int, int, str, int | None]) -> None:
    index, source, name, page = row
    text = as_text(name)
    for stem in itertools.islice(stems(name, page), 1000):
        cursor = connection.execute(
            "INSERT OR IGNORE INTO items (number, source, name, page, stem)"
            " VALUES (?, ?, CAST(? AS TEXT), ?, CAST(? AS TEXT))",
            (index, source, text, page, as_text(stem)),
        )
        if cursor.rowcount:
            return
        if connection.execute("SELECT 1 FROM items WHERE name = CAST(? AS TEXT)", (text,)).fetchone():
            break
    raise InvalidInput(f"two images of the inputs have the same name {shown(name)}: give a folder above both")


def stems(name: str, page: int | None) -> Iterator[str]:
    """Names for the output files of an image, in the order of preference; they stay below the output folder."""
    suffix = "" if page is None else f"[{page}]"
    parts = [part for part in name.removesuffix(suffix).split("/") if part not in ("", ".", "..")] or ["image"]
    whole = PurePosixPath(*parts)
    yield f"{whole.with_name(whole.stem)}{suffix}"
    yield f"{whole}{suffix}"
    for number in itertools.count(2):
        yield f"{whole}{suffix}-{number}"
