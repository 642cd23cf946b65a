"""masks.geojson: the outlines of all masks of a job, as QuPath and the web page read them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from triton_sam.batch.outputs.facts import JobFacts
from triton_sam.batch.outputs.json_text import JsonList, json_text, short_numbers
from triton_sam.batch.outputs.numbering import NumberedMask, NumberedResult
from triton_sam.batch.outputs.outlines import polygons_of
from triton_sam.files import whole_file

NAME = "masks.geojson"
#: As the web page's (js/core/palette.js).
_COLOURS = (
    (47, 143, 255),
    (255, 122, 26),
    (25, 179, 95),
    (230, 57, 155),
    (255, 208, 47),
    (143, 91, 255),
    (0, 188, 201),
    (240, 67, 58),
    (163, 198, 20),
    (201, 138, 91),
)


@contextlib.contextmanager
def geojson_file(path: Path, facts: JobFacts) -> Iterator[Callable[[NumberedResult], None]]:
    """A function that adds a result to the collection, which is complete when the context ends."""
    names: list[str] = []  # of the first two images
    colours: dict[int, tuple[int, int, int]] = {}
    for category in facts.categories:
        _colour(colours, category.get("id"))
    with whole_file(path) as file:
        features = JsonList(file)

        def add(numbered: NumberedResult) -> None:
            if len(names) < 2:
                names.append(numbered.file_name)
            for mask in numbered.masks:
                polygons = polygons_of(mask.record.segmentation)
                if polygons:  # an empty mask has no geometry
                    shown = _properties(numbered, mask, facts, _colour(colours, mask.category_id))
                    features.add({"type": "Feature", "geometry": _geometry(polygons), "properties": shown})

        file.write(b'{"type":"FeatureCollection","features":[')
        yield add
        # The web page puts the masks on the image of this name.
        name = b',"name":' + json_text(names[0]) if len(names) == 1 else b""
        file.write(b"\n]" + name + b"}\n")


def _geometry(polygons: list[Any]) -> dict[str, Any]:
    if len(polygons) == 1:
        return {"type": "Polygon", "coordinates": polygons[0]}
    return {"type": "MultiPolygon", "coordinates": polygons}


def _properties(
    numbered: NumberedResult, mask: NumberedMask, facts: JobFacts, colour: tuple[int, int, int]
) -> dict[str, Any]:
    cleaned = {"clean": {"holes": facts.clean, "islands": facts.clean}} if facts.clean else {}
    return {
        "image": numbered.file_name,
        "image_id": numbered.image_id,
        "id": mask.id,
        "category": mask.category,
        "class": mask.category if mask.has_category else None,
        "score": short_numbers(mask.record.score),
        "area": mask.record.area,
        **cleaned,
        "objectType": "annotation",
        "classification": {"name": mask.category, "color": colour},
    }


def _colour(colours: dict[int, tuple[int, int, int]], category_id: Any) -> tuple[int, int, int]:
    """The colour of a category, by the order in which categories come."""
    return colours.setdefault(category_id, _COLOURS[len(colours) % len(_COLOURS)])
