"""Masks of a video as JSON: COCO's form, one record an object and frame, or YouTube-VIS's, one an object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from triton_sam.core.rle import area_and_bbox
from triton_sam.files import whole_file
from triton_sam.video.results import ResultFile

_CATEGORIES: list[dict[str, Any]] = [{"id": 1, "name": "object", "supercategory": "object"}]


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What the files say of the video itself.

    Attributes:
        frames: number of frames.
        file_name: names a frame's image.
        objects: all objects, in order.
        description: of the file.
    """

    name: str
    size: tuple[int, int]
    frames: int
    file_name: Callable[[int], str]
    objects: Sequence[int]
    description: str

    def as_json(self) -> dict[str, Any]:
        return {"id": 1, "name": self.name, "width": self.size[0], "height": self.size[1], "length": self.frames}


def write_coco(path: Path, results: ResultFile, facts: VideoFacts) -> None:
    """An image for each frame, and an annotation for each mask with pixels: ``track_id`` is the object."""
    width, height = facts.size
    with whole_file(path) as file:
        _put(file, '{"info":', {"description": facts.description}, ',"licenses":[],"videos":', [facts.as_json()])
        images = (
            {"id": index + 1, "file_name": facts.file_name(index), "width": width, "height": height}
            | {"video_id": 1, "frame_id": index}
            for index in range(facts.frames)
        )
        _put_list(file, ',"images":', images)
        _put_list(file, ',"annotations":', _annotations(results))
        _put(file, ',"categories":', _CATEGORIES, "}\n")


def write_youtube_vis(path: Path, results: ResultFile, facts: VideoFacts) -> None:
    """An annotation for each object, with one mask, box and area a frame, null where there is none."""
    with whole_file(path) as file:
        names = [facts.file_name(index) for index in range(facts.frames)]
        video = facts.as_json() | {"file_names": names}
        _put(file, '{"info":', {"description": facts.description}, ',"licenses":[],"videos":', [video])
        _put(file, ',"annotations":[')
        for number, name in enumerate(facts.objects, start=1):
            _put(file, "" if number == 1 else ",", "\n", '{"id":', number, ',"video_id":1,"category_id":1,"iscrowd":0')
            _put(file, f',"width":{facts.size[0]},"height":{facts.size[1]},"object":', name)
            # One pass for each list, so that a video of any length needs no memory.
            for key, pick in (("segmentations", 0), ("bboxes", 1), ("areas", 2)):
                values = (row[pick] for row in _of_object(results, facts.frames, name))
                _put_list(file, f',"{key}":', values, "")
            _put(file, "}")
        _put(file, '\n],"categories":', _CATEGORIES, "}\n")


def _annotations(results: ResultFile) -> Iterator[dict[str, Any]]:
    number = 0
    for frame in results:
        for name, found in frame.objects.items():
            area, bbox = area_and_bbox(found.rle)
            if not area:
                continue
            number += 1
            yield {
                "id": number,
                "image_id": frame.index + 1,
                "video_id": 1,
                "track_id": name,
                "category_id": 1,
                "segmentation": dict(found.rle),
                "area": area,
                "bbox": _short(bbox),
                "iscrowd": 0,
                "score": round(found.score, 4),
            }


def _of_object(results: ResultFile, frames: int, name: int) -> Iterator[tuple[Mapping[str, Any] | None, Any, Any]]:
    """(RLE, box, area) of each frame, None where the object has no pixels."""
    for index in range(frames):
        frame = results.get(index)
        found = None if frame is None else frame.objects.get(name)
        area, bbox = (0, (0.0,) * 4) if found is None else area_and_bbox(found.rle)
        yield (None, None, None) if found is None or not area else (dict(found.rle), _short(bbox), area)


def _short(values: Iterable[float]) -> list[float | int]:
    return [int(value) if value == int(value) else value for value in values]


def _put(file: IO[bytes], *parts: Any) -> None:
    """Texts as they are, everything else as JSON."""
    for part in parts:
        text = part if isinstance(part, str) else json.dumps(part, separators=(",", ":"))
        file.write(text.encode())


def _put_list(file: IO[bytes], before: str, values: Iterable[Any], between: str = "\n") -> None:
    _put(file, before, "[")
    for number, value in enumerate(values):
        _put(file, f",{between}" if number else between, json.dumps(value, separators=(",", ":")))
    _put(file, f"{between}]")
