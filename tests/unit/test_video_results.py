"""Results of a video on the disk, and what is written of them as JSON."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from triton_sam.core.rle import rle
from triton_sam.errors import InvalidInput
from triton_sam.video.annotations import VideoFacts, write_coco, write_youtube_vis
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.results import ResultFile

SIZE = 40, 30
FRAMES, OBJECTS = 5, 20


def frame_of(index: int, objects: int = 1) -> VideoFrame:
    """Object n has a row of n pixels in line ``index``; even objects are absent in odd frames."""
    found = {}
    for name in range(1, objects + 1):
        mask = np.zeros((SIZE[1], SIZE[0]), bool)
        if name % 2 or index % 2 == 0:
            mask[index, :name] = True
        found[name] = FoundObject(rle(mask), 0.5, 1.0)
    return VideoFrame(index, index / 25, found, SIZE)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process cannot become larger meanwhile."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_frame_that_did_not_fit_is_not_written_later_in_place_of_another(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "results", SIZE)
    results.add(frame_of(0))
    with room_for((tmp_path / "results").stat().st_size + 20), pytest.raises(OSError, match="too large"):
        results.add(frame_of(1))
    results.add(frame_of(2))
    results.add(frame_of(1))
    for again in (results, ResultFile(tmp_path / "results", SIZE)):
        assert [frame.index for frame in again] == [0, 1, 2]
        assert [found == frame_of(found.index) for found in again] == [True] * 3
        again.close()


def test_a_line_of_another_frame_is_damage(tmp_path: Path) -> None:
    with (tmp_path / "results").open("wb"):
        pass
    results = ResultFile(tmp_path / "results", SIZE)
    results.add(frame_of(0))
    text = (tmp_path / "results").read_bytes()
    (tmp_path / "results").write_bytes(text.replace(b'"frame": 0', b'"frame": 7'))
    with pytest.raises(InvalidInput, match="damaged"):
        results.get(0)
    results.close()


def test_many_objects_in_both_forms(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "results", SIZE)
    for index in (0, 1, 3):
        results.add(frame_of(index, OBJECTS + 1))
    named = [name for name in range(1, OBJECTS + 1) if name != 3]  # others were removed
    facts = VideoFacts("clip", SIZE, FRAMES, lambda index: f"{index}.png", named, "test")
    write_youtube_vis(tmp_path / "vis.json", results, facts)
    write_coco(tmp_path / "coco.json", results, facts)
    results.close()
    tracks = json.loads((tmp_path / "vis.json").read_text())["annotations"]
    assert [track["object"] for track in tracks] == named
    assert [track["id"] for track in tracks] == list(range(1, len(named) + 1))
    for track in tracks:
        name = track["object"]
        odd = name if name % 2 else None
        assert track["areas"] == [name, odd, None, odd, None]
        assert track["bboxes"][0] == [0, 0, name, 1]
        assert track["segmentations"][0] == dict(frame_of(0, OBJECTS).objects[name].rle)
        assert [value is None for value in track["segmentations"]] == [value is None for value in track["areas"]]
    coco = json.loads((tmp_path / "coco.json").read_text())["annotations"]
    assert {one["track_id"] for one in coco} == set(named)
