"""Files with prompts: which one there is."""

from __future__ import annotations

from pathlib import Path

from triton_sam.batch.prompts.coco_prompts import CocoPrompts
from triton_sam.batch.prompts.csv_prompts import CsvPrompts
from triton_sam.batch.records import PromptSource
from triton_sam.errors import InvalidInput


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
