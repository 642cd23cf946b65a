"""Prompts of a file to the images of a job, by the name that the file gives an image."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from triton_sam.batch.records import ItemPrompt, PromptImage, PromptSource
from triton_sam.batch.state.database import as_text, shown
from triton_sam.errors import InvalidInput

_ROWS = 2000
#: Prompts of an image mostly stand together or near each other.
_KEYS = 20_000
_SHOWN = 3
_Row = TypeVar("_Row")


def fill_prompts(connection: sqlite3.Connection, prompts: PromptSource) -> None:
    """Reads a file of prompts into the tables, inside the caller's transaction.

    Raises:
        InvalidInput: an image of the file is not among the items, or cannot be told from others.
    """
    for images in _groups(prompts.images()):
        with _fitting_numbers():
            connection.executemany(
                "INSERT INTO prompt_images (key, name, tail, image_id)"
                " VALUES (CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), ?)",
                [_image_row(image) for image in images],
            )
    _match(connection)
    connection.execute("CREATE INDEX keys ON prompt_images (key)")
    _fill_prompts(connection, prompts.prompts())
    connection.execute("DROP INDEX keys")
    connection.executemany(
        "INSERT INTO categories (content) VALUES (?)", ((json.dumps(dict(one)),) for one in prompts.categories)
    )


def prompt_of_row(row: tuple[Any, ...]) -> ItemPrompt:
    """From x0, y0, x1, y1, points, labels, annotation_id, category_id."""
    x0, y0, x1, y1, points, labels, annotation_id, category_id = row
    return ItemPrompt(
        None if x0 is None else (x0, y0, x1, y1),
        () if points is None else tuple((x, y) for x, y in json.loads(points)),
        () if labels is None else tuple(json.loads(labels)),
        annotation_id,
        category_id,
    )


def _match(connection: sqlite3.Connection) -> None:
    """Writes to each image of the file the number of its item, and to that item COCO's id."""
    connection.execute(
        "UPDATE prompt_images SET item = (SELECT number FROM items WHERE items.name = prompt_images.name)"
    )
    if connection.execute("SELECT 1 FROM prompt_images WHERE item IS NULL LIMIT 1").fetchone():
        _match_last_parts(connection)
    _refuse_twice(connection)
    connection.execute("CREATE UNIQUE INDEX by_item ON prompt_images (item)")
    connection.execute(
        "UPDATE items SET image_id = (SELECT image_id FROM prompt_images WHERE item = items.number)"
        " WHERE EXISTS (SELECT 1 FROM prompt_images WHERE item = items.number)"
    )
    connection.execute("DROP INDEX by_item")


def _match_last_parts(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE tails (tail TEXT, item INTEGER)")
    for items in _groups(connection.execute("SELECT name, number FROM items")):
        connection.executemany(
            "INSERT INTO tails VALUES (CAST(? AS TEXT), ?)",
            [(as_text(_last_part(name)), number) for name, number in items],
        )
    connection.execute("CREATE INDEX by_tail ON tails (tail)")
    connection.execute("CREATE INDEX by_prompt_tail ON prompt_images (tail)")
    connection.execute(
        "UPDATE prompt_images SET item = (SELECT item FROM tails WHERE tails.tail = prompt_images.tail)"
        " WHERE item IS NULL AND (SELECT count(*) FROM tails WHERE tails.tail = prompt_images.tail) = 1"
        " AND (SELECT count(*) FROM prompt_images AS other WHERE other.tail = prompt_images.tail) = 1"
    )
    _refuse_unknown(connection)
    connection.execute("DROP INDEX by_prompt_tail")
    connection.execute("DROP TABLE tails")


def _refuse_unknown(connection: sqlite3.Connection) -> None:
    (count,) = connection.execute("SELECT count(*) FROM prompt_images WHERE item IS NULL").fetchone()
    if not count:
        return
    rows = connection.execute(
        "SELECT name, EXISTS (SELECT 1 FROM tails WHERE tails.tail = prompt_images.tail)"
        " FROM prompt_images WHERE item IS NULL ORDER BY number LIMIT ?",
        (_SHOWN,),
    ).fetchall()
    names = _listed([shown(name) for name, _ in rows], count)
    if all(is_similar for _, is_similar in rows):
        raise InvalidInput(
            f"the prompts name {_images(count)} that could be one of several inputs ({names}): "
            "name them there with their folders, as in train/1.png"
        )
    raise InvalidInput(
        f"the prompts name {_images(count)} that the inputs do not have ({names}): "
        "give the folders with these images, or remove them from the file of prompts"
    )


def _refuse_twice(connection: sqlite3.Connection) -> None:
    rows = connection.execute(
        "SELECT min(name) FROM prompt_images GROUP BY item HAVING count(*) > 1 ORDER BY min(number) LIMIT ?",
        (_SHOWN + 1,),
    ).fetchall()
    if rows:
        names = ", ".join(shown(name) for (name,) in rows[:_SHOWN]) + (", ..." if len(rows) > _SHOWN else "")
        raise InvalidInput(
            f"the prompts have several entries for one image ({names}): give each image of the file one entry"
        )


def _fill_prompts(connection: sqlite3.Connection, prompts: Iterable[tuple[str, ItemPrompt]]) -> None:
    @functools.lru_cache(_KEYS)
    def number_of(key: str) -> int | None:
        row = connection.execute("SELECT number FROM prompt_images WHERE key = CAST(? AS TEXT)", (as_text(key),))
        found: tuple[int] | None = row.fetchone()
        return None if found is None else found[0]

    unknown: dict[str, None] = {}
    unknown_count = 0
    for group in _groups(prompts):
        rows = []
        for key, prompt in group:
            number = number_of(key)
            if number is None:
                unknown_count += 1
                if len(unknown) < _SHOWN:
                    unknown[key] = None
            else:
                rows.append(_prompt_row(number, prompt))
        with _fitting_numbers():
            connection.executemany(
                "INSERT INTO prompts (image, x0, y0, x1, y1, points, labels, annotation_id, category_id)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
    if unknown_count:
        names = ", ".join(shown(key) for key in unknown)
        raise InvalidInput(
            f"the file of prompts has {unknown_count} prompts for images that it does not list, as {names}: "
            "list these images, or remove the prompts"
        )


def _image_row(image: PromptImage) -> tuple[bytes, bytes, bytes, int | None]:
    return as_text(image.key), as_text(image.name), as_text(_last_part(image.name)), image.image_id


def _prompt_row(number: int, prompt: ItemPrompt) -> tuple[Any, ...]:
    return (
        number,
        *(prompt.box or (None,) * 4),
        json.dumps(prompt.points) if prompt.points else None,
        json.dumps(prompt.labels) if prompt.labels else None,
        prompt.annotation_id,
        prompt.category_id,
    )


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _images(count: int) -> str:
    return f"{count} image{'s' if count > 1 else ''}"


def _listed(names: list[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")


def _groups(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    rest = iter(rows)
    while group := list(itertools.islice(rest, _ROWS)):
        yield group


@contextlib.contextmanager
def _fitting_numbers() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise InvalidInput("an id in the file of prompts has more than 64 bits: give smaller ids") from error
