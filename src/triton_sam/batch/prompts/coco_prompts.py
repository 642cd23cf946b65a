"""Prompts from a COCO file: a box of each annotation."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_sam.batch.prompts import json_stream
from triton_sam.batch.prompts.coco_boxes import box_of
from triton_sam.batch.records import ItemPrompt, PromptImage
from triton_sam.core.json_values import short
from triton_sam.errors import InvalidInput

_FORM = 'a COCO file is {"images": [...], "annotations": [...]}'
_LARGEST_ID = 2**63 - 1


class CocoPrompts:
    """The boxes of a COCO file, which may be larger than the memory.

    An annotation without a box has the box of its segmentation; one without either, or with ``iscrowd`` 1, is left
    out. Boxes are clipped to their image, where the file has its size.

    Attributes:
        categories: known after :meth:`images` has been read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._images: _ImageTable | None = None
        self.categories: Sequence[Mapping[str, Any]] = ()

    def images(self) -> Iterator[PromptImage]:
        """The images in the order of the file; their keys are their ids.

        Raises:
            InvalidInput: the file is no COCO file, or names an image twice.
        """
        self._check_start()
        table = _ImageTable()
        categories: list[Mapping[str, Any]] = []
        numbers = itertools.count()
        for key, entry in json_stream.entries(self._path, "images", "categories"):
            if key == "categories":
                if not isinstance(entry, dict):
                    raise InvalidInput(f"{self._path}: the category {short(entry)} is no object")
                categories.append(entry)
                continue
            yield self._image(entry, next(numbers), table)
        if not next(numbers):
            raise self._nothing("images", "so there is nothing to do")
        self.categories = categories
        self._images = table

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        """(image id, box), in the order of the annotations.

        Raises:
            InvalidInput: a box is wrong, is for an image that is not there, or there are no boxes at all.
        """
        if self._images is None:
            for _ in self.images():
                pass
        assert self._images is not None
        count = found = crowds = wrong = 0
        first = ""
        for _, entry in json_stream.entries(self._path, "annotations"):
            where = f"{self._path}: annotations[{count}]"
            count += 1
            if not isinstance(entry, dict):
                raise InvalidInput(f"{where} is {short(entry)} and no object: {_FORM}")
            if entry.get("iscrowd"):
                crowds += 1
                continue
            try:
                prompt = self._prompt(entry, where, self._images)
            except InvalidInput as error:
                wrong, first = wrong + 1, first or str(error)
                continue
            if prompt is not None:
                found += 1
                yield prompt
        if wrong:
            raise InvalidInput(first if wrong == 1 else f"{wrong} annotations cannot be used, the first one: {first}")
        if not found:
            raise self._without_boxes(count, crowds)

    def _prompt(self, entry: Mapping[str, Any], where: str, images: _ImageTable) -> tuple[str, ItemPrompt] | None:
        annotation_id = _whole(entry.get("id"))
        if annotation_id is not None:
            where += f" (id {annotation_id})"
        image_id = entry.get("image_id")
        size = images.size_of(image_id)
        if size is None:
            raise InvalidInput(f'{where} is for the image {short(image_id)}, which is not among its "images"')
        box = box_of(entry, where, *size)
        if box is None:
            return None
        return str(image_id), ItemPrompt(
            box=box, annotation_id=annotation_id, category_id=_whole(entry.get("category_id"))
        )

    def _image(self, entry: Any, number: int, table: _ImageTable) -> PromptImage:
        where = f"{self._path}: images[{number}]"
        if not isinstance(entry, dict):
            raise InvalidInput(f"{where} is {short(entry)} and no object: {_FORM}")
        image_id = _whole(entry.get("id"))
        if image_id is None:
            raise InvalidInput(f"{where} has the id {short(entry.get('id'))}, and ids are whole numbers")
        name = entry.get("file_name")
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{where} (id {image_id}) has no file_name: add it, as a path in the input folder")
        name = name.replace("\\", "/").removeprefix("./")
        twice = table.add(image_id, name, _side(entry.get("width")), _side(entry.get("height")))
        if twice:
            raise InvalidInput(f"{where} has the {twice} of an image before it: every image must have its own")
        return PromptImage(str(image_id), name, image_id)

    def _check_start(self) -> None:
        first = json_stream.first_character(self._path)
        if first == "[":
            raise InvalidInput(
                f"{self._path} is a list, perhaps of a detector's results, and no COCO file: "
                f'put it into {{"images": [...], "annotations": ...}}'
            )
        if first != "{":
            raise InvalidInput(f"{self._path} is not JSON: {_FORM}")

    def _nothing(self, key: str, so: str) -> InvalidInput:
        if json_stream.has_key(self._path, key):
            return InvalidInput(f'{self._path} has no entry in its list "{key}", {so}')
        return InvalidInput(f'{self._path} is no COCO file, because it has no "{key}": {_FORM}')

    def _without_boxes(self, count: int, crowds: int) -> InvalidInput:
        if not count:
            return self._nothing("annotations", "so there are no boxes: use --everything to segment without prompts")
        if crowds == count:
            return InvalidInput(
                f"all {count:,} annotations of {self._path} are crowds: only those with iscrowd 0 are prompts"
            )
        return InvalidInput(
            f"none of the {count:,} annotations of {self._path} has a box: add bbox [x, y, width, height], "
            "or use --everything"
        )


class _ImageTable:
    """Ids, names and sizes of the images, in a temporary file: there may be more than fit into memory."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.execute(
            "CREATE TABLE images (id INTEGER PRIMARY KEY, name TEXT UNIQUE, width INTEGER, height INTEGER)"
        )

    def add(self, image_id: int, name: str, width: int | None, height: int | None) -> str:
        """Nothing, or what an image before has too."""
        try:
            self._database.execute("INSERT INTO images VALUES (?, ?, ?, ?)", (image_id, name, width, height))
        except sqlite3.IntegrityError:
            known = self.size_of(image_id) is not None
            return f"id {image_id}" if known else f"file_name {name}"
        except UnicodeEncodeError:  # half a surrogate pair, which no file has
            raise InvalidInput(f"the file_name {name!r} of image {image_id} is no text: correct it") from None
        return ""

    def size_of(self, image_id: Any) -> tuple[int | None, int | None] | None:
        """(width, height) as far as they are known; None if there is no such image."""
        if _whole(image_id) is None:
            return None
        row = self._database.execute("SELECT width, height FROM images WHERE id = ?", (image_id,)).fetchone()
        return None if row is None else (row[0], row[1])

    def __del__(self) -> None:
        self._database.close()


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST_ID:
        return None
    return value


def _side(value: Any) -> int | None:
    """A width or height; None if the file does not have it."""
    side = _whole(value)
    return side if side is not None and 0 < side < 2**31 else None
