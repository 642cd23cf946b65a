"""What the service keeps of a video: frames, results, bytes on the disk, and how files are known."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from triton_sam.core.rle import rle
from triton_sam.errors import NotFound, QueueFull, TooLarge
from triton_sam.service.videos.frame_store import FrameStore, FrameWriter, StoredClip
from triton_sam.service.videos.results import StoredResults, ranges
from triton_sam.service.videos.spool import DiskBudget, VideoFolder
from triton_sam.service.videos.uploads import shown_name
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.results import ResultFile
from triton_sam.video.untrusted import file_kind

SIZE = (6, 4)


def found(index: int, *there: int, absent: tuple[int, ...] = ()) -> VideoFrame:
    def one(*, is_there: bool) -> FoundObject:
        mask = np.zeros((SIZE[1], SIZE[0]), np.bool_)
        mask[1, 2] = is_there
        return FoundObject(rle(mask), 0.5, 1.0 if is_there else -1.0)

    objects = {name: one(is_there=True) for name in there} | {name: one(is_there=False) for name in absent}
    return VideoFrame(index, None, objects, SIZE)


def test_frames_are_read_as_they_were_written(tmp_path: Path) -> None:
    writer = FrameWriter(tmp_path)
    for index in range(3):
        writer.add(b"x" * index, index / 25 if index else None)
    writer.close()
    store = FrameStore(tmp_path)
    store.add(b"later")
    assert [store.read(index).data for index in range(4)] == [b"", b"x", b"xx", b"later"]
    assert [store.read(index).seconds for index in range(4)] == [None, 0.04, 0.08, None]
    store.write_index()
    again = FrameStore(tmp_path)
    assert (again.count, again.size) == (4, 8)
    clip = StoredClip(again, SIZE)
    assert [frame.index for frame in clip.frames(2)] == [2, 3]
    assert clip.length == 4
    assert StoredClip(again, SIZE, grows=True).length is None
    store.close()
    clip.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_frames_that_are_kept_need_no_file_each(tmp_path: Path) -> None:
    store = FrameStore(tmp_path)
    before = open_files()
    kept = []
    for index in range(500):
        store.add(b"%05d" % index * 100)
        kept.append(store.view(index))
    assert open_files() - before < 12
    store.close()
    assert [bytes(frame.data) for frame in kept] == [b"%05d" % index * 100 for index in range(500)]
    kept.clear()
    assert open_files() < before


def test_a_store_that_is_closed_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another file's at once, so what is under way keeps it."""
    store = FrameStore(tmp_path)
    store.add(b"mine")
    real = os.pread

    def slow(file: int, size: int, start: int) -> bytes:
        store.close()
        (tmp_path / "other").write_bytes(b"others")
        with (tmp_path / "other").open("rb") as other:
            assert other.fileno() != file
            return real(file, size, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", slow)
        assert store.read(0).data == b"mine"
    for work in (lambda: store.read(0), lambda: store.view(0), lambda: store.add(b"x"), store.write_index):
        with pytest.raises(NotFound, match="no such video"):
            work()


def test_results_and_where_objects_are(tmp_path: Path) -> None:
    results = StoredResults(tmp_path, SIZE, 10**6)
    for index in (3, 4, 5, 9):
        results.add(found(index, 1, absent=(2,)), tracked=True)
    results.add(found(4, 2, absent=(1,)), tracked=True)
    assert results.frames() == [(3, 5), (9, 9)]
    assert results.presence([1, 2, 3]) == {1: [(3, 3), (5, 5), (9, 9)], 2: [(4, 4)], 3: []}
    kept = results.get(4)
    assert kept is not None
    assert kept.objects.keys() == {1, 2}
    results.forget_object(2)
    assert results.presence([1, 2]) == {1: [(3, 3), (5, 5), (9, 9)], 2: []}
    kept = results.get(4)
    assert kept is not None
    assert kept.objects.keys() == {1}
    results.forget_object(1)
    assert (results.frames(), results.is_tracked) == ([], False)
    results.add(found(1, 1), tracked=True)
    results.clear()
    assert results.get(1) is None
    results.close()


def test_results_on_a_full_disk_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = StoredResults(tmp_path, SIZE, 10**6)
    for index in range(4):
        results.add(found(index, 1, 2), tracked=True)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", full)
        with pytest.raises(OSError, match="No space"):
            results.forget_object(2)
    assert results.presence([1, 2]) == {1: [(0, 3)], 2: [(0, 3)]}
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    results.forget_object(2)
    assert results.presence([1, 2]) == {1: [(0, 3)], 2: []}
    results.close()


def test_results_do_not_grow_with_each_propagation(tmp_path: Path) -> None:
    results = StoredResults(tmp_path, SIZE, 3000)
    for _ in range(40):
        for index in range(8):
            results.add(found(index, 1), tracked=True)
        assert results.bytes < 3200
    assert results.frames() == [(0, 7)]

    def add_many() -> None:
        for index in range(100):
            results.add(found(index, 1), tracked=True)

    with pytest.raises(TooLarge, match="the masks of the video"):
        add_many()
    results.close()


def test_some_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    budget = DiskBudget(10**6)
    folder = VideoFolder(tmp_path / "mine", budget, "mine")
    budget.cap(100)
    folder.count("frames", 45)
    with pytest.raises(QueueFull, match="there is no room"):
        folder.count("frames", 46)


def test_bytes_are_those_of_all_and_of_each_caller(tmp_path: Path) -> None:
    budget = DiskBudget(100)
    mine, other = (VideoFolder(tmp_path / name, budget, name) for name in ("mine", "other"))
    mine.count("frames", 40)
    mine.count("frames", 50)
    with pytest.raises(QueueFull, match="there is no room"):
        mine.count("results", 1)
    other.count("frames", 50)
    with pytest.raises(QueueFull, match="there is no room"):
        other.count("frames", 51)
    assert (budget.used, mine.bytes, other.bytes) == (100, 50, 50)
    mine.remove()
    assert (budget.used, mine.bytes) == (50, 0)
    assert not mine.path.exists()
    other.unlink("frames")
    assert budget.used == 0


@pytest.mark.parametrize(
    ("numbers", "expected"), [([], []), ([4], [(4, 4)]), ([0, 1, 2, 5, 7, 8], [(0, 2), (5, 5), (7, 8)])]
)
def test_ranges(numbers: list[int], expected: list[tuple[int, int]]) -> None:
    assert ranges(numbers) == expected


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\0\0\0\x14ftypisom", "MP4"),
        (b"\x1a\x45\xdf\xa3", "Matroska"),
        (b"RIFF\0\0\0\0AVI ", "AVI"),
        (b"RIFF\0\0\0\0WEBP", "WebP"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\x47" + bytes(187) + b"\x47", "MPEG-TS"),
        (b"\x47" + bytes(300), None),
        (b"II*\0", "TIFF"),
        (b"GIF89a", "GIF"),
        (b"#EXTM3U", None),
        (b"ffconcat version 1.0", None),
        (b"<?xml", None),
        (b"v=0\n", None),
        (b"", None),
    ],
)
def test_the_kind_of_a_file(head: bytes, kind: str | None) -> None:
    assert file_kind(head) == kind


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("clip.mp4", "clip.mp4"),
        ("../../etc/passwd", "passwd"),
        ("C:\\films\\a.mp4", "a.mp4"),
        ("a\0b\x1b[31m\n.mp4", "a_b_[31m_.mp4"),
        ("..", "video"),
        ("", "video"),
        ("x" * 500, "x" * 100),
    ],
)
def test_a_name_as_it_is_shown(name: str, shown: str) -> None:
    assert shown_name(name) == shown
