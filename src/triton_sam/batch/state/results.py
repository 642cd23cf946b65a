"""The result of one image as a file, which the merge reads and a user may."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_sam.batch.records import Item, ItemResult, MaskRecord
from triton_sam.batch.state.disk_errors import sync_where_possible
from triton_sam.errors import InvalidInput, NotFound
from triton_sam.files import whole_file

RESULTS = "results"
#: Of the JSON; a later one has a greater number.
_VERSION = 1
_PER_FOLDER = 1000


class ResultFiles:
    """The files ``results/000000/000000123.json`` of a job, by the index of its items."""

    per_folder = _PER_FOLDER

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._results = folder / RESULTS

    def prepare(self) -> None:
        """Makes the folder of all results; no later call does, so that a share that is gone is not written beside."""
        self._results.mkdir(exist_ok=True)
        sync_where_possible(self.folder)

    def path(self, index: int) -> Path:
        return self._folder(index // _PER_FOLDER) / f"{index:09d}.json"

    def write(self, result: ItemResult) -> int:
        """Writes it, whole or not at all. Its folder and the one above are not yet on the disk then.

        Returns:
            Its bytes.
        """
        content = json.dumps(_document(result), allow_nan=False, separators=(",", ":"), default=_plain).encode()
        path = self.path(result.item.index)
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            file.write(content)
        return len(content)

    def read(self, item: Item) -> ItemResult:
        """The result of an image.

        Raises:
            NotFound: there is no file.
            InvalidInput: it is damaged, or not this image's.
        """
        path = self.path(item.index)
        try:
            content = json.loads(path.read_bytes())
            if content["version"] > _VERSION:
                raise InvalidInput(f"{path} was written by a newer version of triton-sam: update this one")
            if content["name"] != item.name:
                raise InvalidInput(f"{path} is the result of another image")
            return _result(item, content)
        except FileNotFoundError:
            raise NotFound(f"{path} is missing") from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"{path} is damaged") from error

    def present(self) -> Iterator[tuple[int, set[int]]]:
        """(first index, indexes) of each folder's files, in order; one folder at a time is in memory."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._results) if entry.name.isdigit())
        except FileNotFoundError:
            return
        for name in names:
            with os.scandir(self._results / name) as entries:
                stems = (entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))
                yield int(name) * _PER_FOLDER, {int(stem) for stem in stems if stem.isdigit()}

    def _folder(self, number: int) -> Path:
        return self._results / f"{number:06d}"


def _document(result: ItemResult) -> dict[str, Any]:
    item = result.item
    return {
        "version": _VERSION,
        "name": item.name,
        "index": item.index,
        "page": item.page,
        "image_id": item.image_id,
        "width": result.width,
        "height": result.height,
        "model": result.model,
        "seconds": result.seconds,
        "masks": [
            {
                "segmentation": dict(mask.segmentation),
                "area": mask.area,
                "bbox": list(mask.bbox),
                "score": mask.score,
                "annotation_id": mask.annotation_id,
                "category_id": mask.category_id,
                "extra": dict(mask.extra),
            }
            for mask in result.masks
        ],
    }


def _result(item: Item, content: dict[str, Any]) -> ItemResult:
    masks = []
    for mask in content["masks"]:
        x, y, width, height = mask["bbox"]
        masks.append(
            MaskRecord(
                mask["segmentation"],
                mask["area"],
                (x, y, width, height),
                mask["score"],
                mask["annotation_id"],
                mask["category_id"],
                mask["extra"],
            )
        )
    return ItemResult(item, content["width"], content["height"], masks, content["model"], content["seconds"])


def _plain(value: Any) -> Any:
    """A number or an array of numpy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
