"""The end of a job: one pass over its results feeds all files that are about all images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from triton_sam.batch.outputs import coco, geojson, report
from triton_sam.batch.outputs.choosing import check_outputs
from triton_sam.batch.outputs.contact_sheet import thumbnails
from triton_sam.batch.outputs.facts import JobFacts
from triton_sam.batch.outputs.numbering import NumberedResult, Numbering
from triton_sam.batch.outputs.statistics import Statistics
from triton_sam.batch.records import Item, ItemResult
from triton_sam.files import sync_folder, whole_file


def write_outputs(
    folder: Path,
    names: Sequence[str],
    results: Iterator[ItemResult],
    facts: JobFacts,
    picture: Callable[[Item], Image.Image] | None = None,
) -> Statistics:
    """Writes annotations.json, masks.geojson and report.html, those that ``names`` has. Each is whole or as it was.

    Args:
        results: in the order of their index, read once; one is in memory at a time.
        picture: of a sample in the report, upright; without it, or where it fails, masks are drawn on grey.

    Raises:
        OSError: the disk.
    """
    check_outputs(names)
    statistics = Statistics()
    numbering = Numbering(facts.categories, from_coco=facts.from_coco)
    with contextlib.ExitStack() as files:
        adders: list[Callable[[NumberedResult], None]] = []
        if "coco" in names:
            adders.append(files.enter_context(coco.coco_file(folder / coco.NAME, facts, numbering)))
        if "geojson" in names:
            adders.append(files.enter_context(geojson.geojson_file(folder / geojson.NAME, facts)))
        for result in results:
            statistics.add(result)
            if adders:
                numbered = numbering.numbered(result)
                for add in adders:
                    add(numbered)
    if "report" in names:
        pictures = thumbnails(statistics.samples, picture)
        with whole_file(folder / report.NAME) as file:
            file.write(report.report_page(folder, facts, statistics, pictures))
    sync_folder(folder)
    return statistics
