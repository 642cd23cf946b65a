"""Masks of a video as JSON: COCO's form, one record an object and frame, or YouTube-VIS's, one an object."""

from __future__ import annotations

import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from triton_sam.core.rle import area_and_bbox
from triton_sam.files import whole_file
from triton_sam.video.found import FoundObject
from triton_sam.video.results import ResultFile

#: Objects that are collected in one pass; each has a file.
_AT_ONCE = 16
#: The category of objects without a name.
_OBJECT = "object"


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What the files say of the video itself.

    Attributes:
        frames: number of frames.
        file_name: names a frame's image.
        objects: all objects, in order.
        description: of the file.
        names: object -> the name of its category.
    """

    name: str
    size: tuple[int, int]
    frames: int
    file_name: Callable[[int], str]
    objects: Sequence[int]
    description: str
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def categories(self) -> list[dict[str, Any]]:
        """As in COCO; ids count from 1 in the order of the objects."""
        listed = list(dict.fromkeys(self.names.get(name, _OBJECT) for name in self.objects)) or [_OBJECT]
        return [{"id": number + 1, "name": name, "supercategory": _OBJECT} for number, name in enumerate(listed)]

    def category_ids(self) -> dict[int, int]:
        """Object -> the id of its category."""
        ids = {category["name"]: category["id"] for category in self.categories}
        return {name: ids[self.names.get(name, _OBJECT)] for name in self.objects}

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
        _put_list(file, ',"annotations":', _annotations(results, facts.category_ids()))
        _put(file, ',"categories":', facts.categories, "}\n")


def write_youtube_vis(path: Path, results: ResultFile, facts: VideoFacts) -> None:
    """An annotation for each object, with one mask, box and area a frame, null where there is none."""
    with whole_file(path) as file:
        names = [facts.file_name(index) for index in range(facts.frames)]
        video = facts.as_json() | {"file_names": names}
        _put(file, '{"info":', {"description": facts.description}, ',"licenses":[],"videos":', [video])
        _put(file, ',"annotations":[')
        number, categories = 0, facts.category_ids()
        for start in range(0, len(facts.objects), _AT_ONCE):
            for track in _tracks(results, facts, facts.objects[start : start + _AT_ONCE], path.parent):
                number += 1
                _put(file, "" if number == 1 else ",", "\n")
                _put(file, '{"id":', number, ',"video_id":1,"category_id":', categories[track.name], ',"iscrowd":0')
                _put(file, f',"width":{facts.size[0]},"height":{facts.size[1]},"object":', track.name)
                track.write(file)
        _put(file, '\n],"categories":', facts.categories, "}\n")


def _annotations(results: ResultFile, categories: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    number = 0
    for frame in results:
        for name, found in frame.objects.items():
            area, bbox = area_and_bbox(found.rle)
            if not area or name not in categories:
                continue
            number += 1
            yield {
                "id": number,
                "image_id": frame.index + 1,
                "video_id": 1,
                "track_id": name,
                "category_id": categories[name],
                "segmentation": dict(found.rle),
                "area": area,
                "bbox": _short(bbox),
                "iscrowd": 0,
                "score": round(found.score, 4),
            }


class _Track:
    """One object through all frames; its masks wait in a file, so that a video of any length needs little memory."""

    def __init__(self, name: int, masks: IO[bytes]) -> None:
        self.name = name
        self._masks = masks
        self._boxes: array[float] = array("d")
        self._areas: array[int] = array("q")

    def add(self, found: FoundObject | None) -> None:
        """The next frame's."""
        area, box = (0, (0.0,) * 4) if found is None else area_and_bbox(found.rle)
        mask = dict(found.rle) if found is not None and area else None
        _put(self._masks, "," if self._areas else "", json.dumps(mask, separators=(",", ":")))
        self._areas.append(area)
        self._boxes.extend(box)

    def write(self, file: IO[bytes]) -> None:
        """The rest of the object's record; no frame can be added any more."""
        _put(file, ',"segmentations":[')
        self._masks.seek(0)
        shutil.copyfileobj(self._masks, file)
        boxes = (self._boxes[4 * index : 4 * index + 4] for index in range(len(self._areas)))
        shown = (_short(box) if area else None for box, area in zip(boxes, self._areas, strict=True))
        _put_list(file, '],"bboxes":', shown, "")
        _put_list(file, ',"areas":', (area or None for area in self._areas), "")
        _put(file, "}")


def _tracks(results: ResultFile, facts: VideoFacts, objects: Sequence[int], folder: Path) -> Iterator[_Track]:
    """Some objects, from one pass through the frames."""
    with ExitStack() as files:
        tracks = [_Track(name, files.enter_context(tempfile.TemporaryFile(dir=folder))) for name in objects]
        for index in range(facts.frames):
            frame = results.get(index)
            for track in tracks:
                track.add(None if frame is None else frame.objects.get(track.name))
        yield from tracks


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
