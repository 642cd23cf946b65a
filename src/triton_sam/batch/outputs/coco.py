"""annotations.json: all masks of a job as one COCO document."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from triton_sam.batch.outputs.facts import JobFacts
from triton_sam.batch.outputs.json_text import JsonList, json_text, short_numbers
from triton_sam.batch.outputs.numbering import NumberedMask, NumberedResult, Numbering
from triton_sam.files import whole_file

NAME = "annotations.json"
_CHUNK = 2**18


@contextlib.contextmanager
def coco_file(path: Path, facts: JobFacts, numbering: Numbering) -> Iterator[Callable[[NumberedResult], None]]:
    """A function that adds a result to the document, which is complete when the context ends.

    Images come before annotations in the file, so that a reader who streams it knows them. Annotations wait on the
    disk, in a file of the same folder without a name.
    """
    with whole_file(path) as file, tempfile.TemporaryFile(dir=path.parent) as annotations:
        images_list, annotations_list = JsonList(file), JsonList(annotations)

        def add(numbered: NumberedResult) -> None:
            result = numbered.result
            head = {"id": numbered.image_id, "file_name": numbered.file_name}
            images_list.add(head | {"width": result.width, "height": result.height})
            for mask in numbered.masks:
                annotations_list.add(annotation(mask, numbered.image_id))

        file.write(b'{"info":' + json_text(_info(facts)) + b',"licenses":[],"images":[')
        yield add
        file.write(b'\n],"annotations":[')
        annotations.seek(0)
        shutil.copyfileobj(annotations, file, _CHUNK)
        file.write(b'\n],"categories":' + json_text(short_numbers(numbering.categories())) + b"}\n")


def annotation(mask: NumberedMask, image_id: int) -> dict[str, Any]:
    """A mask as COCO's annotation, with the further values of everything mode."""
    record = mask.record
    extra: dict[str, Any] = short_numbers(dict(record.extra))
    return extra | {
        "id": mask.id,
        "image_id": image_id,
        "category_id": mask.category_id,
        "segmentation": {"size": list(record.segmentation["size"]), "counts": record.segmentation["counts"]},
        "area": record.area,
        "bbox": short_numbers(record.bbox),
        # COCO's own files have RLE for crowds only, but readers look at the segmentation itself, and leave out crowds.
        "iscrowd": 0,
        "score": short_numbers(record.score),
    }


def _info(facts: JobFacts) -> dict[str, Any]:
    """No date: the same results give the same file."""
    info: dict[str, Any] = {"description": f"Segmented with triton-sam {facts.version}".rstrip()}
    if facts.clean:
        info["clean"] = {"holes": facts.clean, "islands": facts.clean}
    return info
