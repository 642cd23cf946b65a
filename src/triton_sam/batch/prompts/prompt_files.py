"""Files with prompts: which one there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_sam.batch.prompts.coco_prompts import CocoPrompts
from triton_sam.batch.prompts.csv_prompts import CsvPrompts
from triton_sam.batch.records import ItemPrompt, PromptImage, PromptSource
from triton_sam.errors import InvalidInput


class CheckedPrompts:
    """The prompts of another source, whose entries go through ``check``, which may raise."""

    def __init__(self, source: PromptSource, check: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        self._source = source
        self._check = check

    @property
    def categories(self) -> Sequence[Mapping[str, Any]]:
        return self._source.categories

    def images(self) -> Iterator[PromptImage]:
        return self._check(self._source.images())

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        return self._check(self._source.prompts())


def open_prompts(coco: Path | None, csv: Path | None) -> PromptSource | None:
    """The prompts of a job; None without a file. InvalidInput for two, or for one that is not there."""
    if coco is not None and csv is not None:
        raise InvalidInput("prompts come from one file: give --coco or --csv, not both")
    given = coco or csv
    if given is None:
        return None
    path = given.expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InvalidInput(f"the file of prompts {path} {what}: give a {'COCO JSON' if coco else 'CSV'} file")
    return CocoPrompts(path) if coco is not None else CsvPrompts(path)
