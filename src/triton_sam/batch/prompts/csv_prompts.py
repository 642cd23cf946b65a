"""Prompts from a CSV file: points or boxes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from triton_sam.batch.prompts.csv_rows import BOXES, Header, Row, read_rows
from triton_sam.batch.records import ItemPrompt, PromptImage
from triton_sam.errors import InvalidInput

_Point = tuple[float, float, int]


class CsvPrompts:
    """The points or boxes of a CSV file with a header; ``,``, ``;`` or a tab between the cells.

    - ``file,x0,y0,x1,y1``: each row is a box and an object of its own.
    - ``file,x,y,label,object``: the rows of a file with the same ``object`` are one object, wherever they stand.
    - ``file,x,y,label``: if all points of a file have the label 1, each is an object of its own. One point with 1 and
      others with 0 are one object. Several with 1 and some with 0 could mean anything, and are refused.

    Further columns are ignored. The keys of the images are their names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.categories: Sequence[Mapping[str, Any]] = ()

    def images(self) -> Iterator[PromptImage]:
        """The files, in the order in which they come first.

        Raises:
            InvalidInput: says which line is wrong, or that there is none.
        """
        _, rows = self._read()
        with closing(sqlite3.connect("")) as database:  # a temporary file: they may be more than fit into memory
            database.execute("CREATE TABLE files (name TEXT PRIMARY KEY) WITHOUT ROWID")
            for row in rows:
                if database.execute("INSERT OR IGNORE INTO files VALUES (?)", (row.file,)).rowcount:
                    yield PromptImage(row.file, row.file)

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        """(file, prompt): boxes in the order of the rows, points by file and object.

        Raises:
            InvalidInput: says which line is wrong, or whose points could mean several things.
        """
        header, rows = self._read()
        return _boxes(rows, header) if header.values == BOXES else _points(self._path, rows, header)

    def _read(self) -> tuple[Header, Iterator[Row]]:
        header, rows = read_rows(self._path)
        return header, self._not_empty(rows)

    def _not_empty(self, rows: Iterator[Row]) -> Iterator[Row]:
        first = next(rows, None)
        if first is None:
            raise InvalidInput(f"{self._path} has a header and no rows: add a row for each prompt")
        yield first
        yield from rows


def _boxes(rows: Iterator[Row], header: Header) -> Iterator[tuple[str, ItemPrompt]]:
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE objects (file TEXT, object TEXT, PRIMARY KEY (file, object)) WITHOUT ROWID")
        for row in rows:
            if header.has_objects:
                added = database.execute("INSERT OR IGNORE INTO objects VALUES (?, ?)", (row.file, row.object))
                if not added.rowcount:
                    raise InvalidInput(
                        f"{row.where}: the object {row.object} of {row.file} has a second box: "
                        'give each box its own "object"'
                    )
            x0, y0, x1, y1 = row.values
            yield row.file, ItemPrompt(box=(x0, y0, x1, y1))


def _points(path: Path, rows: Iterator[Row], header: Header) -> Iterator[tuple[str, ItemPrompt]]:
    """Sorted by file and object in a temporary file, because the rows of an object need not stand together."""
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE objects (id INTEGER PRIMARY KEY, file TEXT, object TEXT, UNIQUE (file, object))")
        database.execute("CREATE TABLE points (object INTEGER, x REAL, y REAL, label INTEGER)")
        for row in rows:
            key = (row.file, row.object)
            database.execute("INSERT OR IGNORE INTO objects (file, object) VALUES (?, ?)", key)
            database.execute(
                "INSERT INTO points SELECT id, ?, ?, ? FROM objects WHERE file = ? AND object = ?", (*row.values, *key)
            )
        sorted_points = database.execute(
            "SELECT objects.id, file, objects.object, x, y, label "
            "FROM points JOIN objects ON points.object = objects.id ORDER BY objects.id, points.rowid"
        )
        for (_, file, name), group in groupby(sorted_points, key=lambda found: found[:3]):
            points = [(x, y, label) for *_, x, y, label in group]
            of = f"{path}: object {name} of {file}" if header.has_objects else f"{path}: {file}"
            for prompt in [_one(points, of)] if header.has_objects else _without_objects(points, of):
                yield file, prompt


def _without_objects(points: Sequence[_Point], of: str) -> Iterator[ItemPrompt]:
    """The objects of a file whose points do not say which belong together."""
    positive = sum(label for *_, label in points)
    if positive == len(points):
        for point in points:
            yield _one([point], of)
    elif positive <= 1:
        yield _one(points, of)
    else:
        raise InvalidInput(
            f'{of} has {positive} points with label 1 and some with 0: add a column "object" that says which belong '
            "together"
        )


def _one(points: Sequence[_Point], of: str) -> ItemPrompt:
    if not any(label for *_, label in points):
        raise InvalidInput(f"{of} has no point with label 1: add one on the object")
    return ItemPrompt(points=tuple((x, y) for x, y, _ in points), labels=tuple(label for *_, label in points))
