"""Ids of images, annotations and categories: kept from a COCO file, made elsewhere, each one once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_sam.batch.records import Item, ItemResult, MaskRecord

#: Above all ids of COCO's own files, which have 12 decimal digits.
_BEYOND = 2**40
_OBJECT = "object"
_WORD_BITS = 6


@dataclass(frozen=True, slots=True)
class NumberedMask:
    """A mask with its ids; ``category`` is a name, ``has_category`` whether its prompt had one."""

    id: int
    category_id: int
    category: str
    has_category: bool
    record: MaskRecord


@dataclass(frozen=True, slots=True)
class NumberedResult:
    """A result with its ids; ``file_name`` as the web page names images."""

    image_id: int
    file_name: str
    result: ItemResult
    masks: Sequence[NumberedMask]


class Numbering:
    """Gives ids in the order of the results.

    An id of a COCO file is kept unless it was given already, as for pages of one file: then the later one gets another.
    """

    def __init__(self, categories: Sequence[Mapping[str, Any]] = (), *, from_coco: bool = False) -> None:
        first = _BEYOND if from_coco else 0
        self._images = _Ids(first)
        self._annotations = _Ids(first)
        self._categories = [dict(category) for category in categories]
        self._names: dict[int, str] = {}
        for category in categories:
            number = category.get("id")
            if isinstance(number, int):
                self._names[number] = str(category.get("name", number))
        known = {name: number for number, name in self._names.items()}
        self._default = known.get(_OBJECT, 1 if 1 not in self._names else max(self._names) + 1)

    def numbered(self, result: ItemResult) -> NumberedResult:
        item = result.item
        image_id = self._images.take(item.image_id, item.index + 1)
        return NumberedResult(image_id, file_name(item), result, [self._mask(record) for record in result.masks])

    def categories(self) -> list[dict[str, Any]]:
        """Those of the COCO file, and then those that results have had beside them."""
        return self._categories

    def _mask(self, record: MaskRecord) -> NumberedMask:
        has_category = record.category_id is not None
        category_id = self._default if record.category_id is None else record.category_id
        if category_id not in self._names:
            name = _OBJECT if category_id == self._default else f"category {category_id}"
            self._names[category_id] = name
            self._categories.append({"id": category_id, "name": name, "supercategory": _OBJECT})
        number = self._annotations.take(record.annotation_id)
        return NumberedMask(number, category_id, self._names[category_id], has_category, record)


def file_name(item: Item) -> str:
    """The name of an image as the web page writes and reads it: pages of a file are counted from 1, ``stack.tif#4``."""
    ending = f"[{item.page}]"
    if item.page is None or not item.name.endswith(ending):
        return item.name
    return f"{item.name.removesuffix(ending)}#{item.page + 1}"


class _Ids:
    """Numbers, each given once. It keeps little of those in a row: 64 of them are the bits of one integer."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._last = first
        self._given: dict[int, int] = {}

    def take(self, wanted: int | None, otherwise: int | None = None) -> int:
        """``wanted`` if it is free, else ``otherwise``, counted from the first, if that is; else the next number."""
        if wanted is None and otherwise is not None:
            wanted = self._first + otherwise
        if wanted is None or not self._take(wanted):
            wanted = self._next()
        return wanted

    def _take(self, number: int) -> bool:
        word, bit = number >> _WORD_BITS, 1 << (number & (1 << _WORD_BITS) - 1)
        given = self._given.get(word, 0)
        self._given[word] = given | bit
        return not given & bit

    def _next(self) -> int:
        while True:
            self._last += 1
            if self._take(self._last):
                return self._last
