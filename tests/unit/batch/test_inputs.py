"""Which images a job has, in which order and under which names."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.batch.input_helpers import png, stack, write, zarr2
from triton_sam.batch.inputs.sources import find_sources, pages_of
from triton_sam.batch.records import Source
from triton_sam.errors import InvalidInput, JobStopped, SetupError


def names(*inputs: Path | str, exclude: tuple[Path, ...] = ()) -> list[str]:
    return [source.name for source in find_sources([str(each) for each in inputs], exclude=exclude)]


def source(path: Path) -> Source:
    facts = path.stat()
    return Source(path.name, path, facts.st_size, facts.st_mtime_ns)


def test_a_folder_is_read_with_its_folders_sorted_without_hidden_files_and_other_kinds(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/10.png", "a.tiff", "c.webp", "b.png", ".x.png", ".git/x.png", "notes.md", "b/x.json"):
        write(tmp_path / name)
    assert names(tmp_path) == ["a.tiff", "b/10.png", "b/2.JPG", "b.png", "c.webp"]


def test_a_source_has_what_is_needed_to_notice_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", b"12345")
    os.utime(path, ns=(5, 7_000_000_000))
    assert list(find_sources([str(tmp_path)])) == [Source("a.png", path, 5, 7_000_000_000)]


def test_relative_inputs_give_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "a.png")
    monkeypatch.chdir(tmp_path)
    assert [each.path for each in find_sources(["in"])] == [tmp_path / "in" / "a.png"]
    assert names("in/*.png") == ["a.png"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.png", ["a.png"]),
        ("**/*.png", ["a.png", "b/c/d.png", "b/e.png"]),
        ("b/**", ["c/d.png", "e.png"]),  # relative to b
        ("b/**/**/*.png", ["c/d.png", "e.png"]),
        ("*", ["a.png", "b/c/d.png", "b/e.png"]),  # a folder that it names is read
        ("?/[ae].png", ["b/e.png"]),
        (".h*/*.png", [".hidden/f.png"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("a.png", "b/c/d.png", "b/e.png", ".hidden/f.png", "g.txt"):
        write(tmp_path / name)
    assert names(tmp_path / pattern) == expected


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    write(tmp_path / "a[1].png")
    assert names(tmp_path / "a[1].png") == ["a[1].png"]


def test_a_file_comes_once_even_over_links_and_two_inputs(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert names(tmp_path / "a") == ["x.png"]
    assert names(tmp_path) == ["a/x.png"]
    assert names(tmp_path / "a", tmp_path / "b", tmp_path / "a" / "x.png", tmp_path) == ["x.png"]


def test_equal_names_of_two_inputs_are_prefixed_by_their_folders(tmp_path: Path) -> None:
    for name in ("a/x.png", "a/y.png", "b/x.png", "c/z.png"):
        write(tmp_path / name)
    assert names(tmp_path / "a", tmp_path / "b", tmp_path / "c") == ["a/x.png", "a/y.png", "b/x.png", "z.png"]
    assert names(tmp_path / "a" / "x.png", tmp_path / "b" / "x.png") == ["a/x.png", "b/x.png"]


def test_names_that_prefixes_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    for name in ("1/a/x.png", "2/a/x.png"):
        write(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"would both be named a/x\.png: give a folder that holds both"):
        names(tmp_path / "1" / "a", tmp_path / "2" / "a")
    assert names(tmp_path) == ["1/a/x.png", "2/a/x.png"]


def test_the_output_folder_and_those_of_other_jobs_are_no_input(tmp_path: Path) -> None:
    for name in ("x.png", "out/labels/x.png", "old/job.sqlite3", "old/overlays/x.jpg"):
        write(tmp_path / name)
    assert names(tmp_path, exclude=(tmp_path / "out", tmp_path / "not-there")) == ["x.png"]
    assert names(tmp_path / "**" / "*.png", exclude=(tmp_path / "out",)) == ["x.png"]
    for text in (tmp_path / "out" / "labels", tmp_path / "out", tmp_path / "out" / "*.png"):
        with pytest.raises(InvalidInput, match=r"lies in the output folder .*/out: choose another --out"):
            names(text, exclude=(tmp_path / "out",))


def test_a_list_of_paths(tmp_path: Path) -> None:
    for name in ("d/a.png", "b.png"):
        write(tmp_path / name)
    paths = write(tmp_path / "paths.txt", b"\xef\xbb\xbfd/a.png\r\n\n./b.png\nd/../b.png\n")
    assert names(paths) == ["d/a.png", "b.png"]


def test_names_of_a_list_elsewhere_are_relative_to_the_folder_that_holds_all(tmp_path: Path) -> None:
    images = [write(tmp_path / "data" / name) for name in ("1/x.png", "2/x.png", "20/y.png")]
    paths = write(tmp_path / "lists" / "paths.lst", "\n".join(map(str, images)).encode())
    assert names(paths) == ["1/x.png", "2/x.png", "20/y.png"]


def test_a_zarr_array_is_one_source(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    zarr2(tmp_path / "a.zarr", np.zeros((2, 20, 30), np.uint8))
    zarr2(tmp_path / "group" / "0", np.zeros((20, 30), np.uint8))
    write(tmp_path / "group" / ".zgroup", b'{"zarr_format": 2}')
    assert names(tmp_path / "a.zarr") == ["a.zarr"]
    assert names(tmp_path / "*.zarr") == ["a.zarr"]
    assert names(tmp_path / "*" / "0") == ["group/0"]
    with pytest.raises(InvalidInput, match=r"group is a Zarr group and no array: give one of its arrays \(0\)"):
        names(tmp_path)
    with pytest.raises(InvalidInput, match="group is a Zarr group and no array"):
        names(tmp_path / "group")


def test_a_new_chunk_is_no_change_of_an_array(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    folder = zarr2(tmp_path / "a.zarr", np.zeros((2, 20, 30), np.uint8))
    before = list(find_sources([str(folder)]))
    write(folder / "9.0.0")
    assert list(find_sources([str(folder)])) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not-there", "the input .*not-there does not exist: give a folder, a pattern or image files"),
        ("not-there/*.png", "is for the folder .*/not-there, which does not exist"),
        ("*.bmp", r"the input .*\*.bmp has no image: PNG, JPEG, TIFF, .*Zarr arrays are read"),
        ("empty", "the input .*empty has no image"),
        ("coco.json", "coco.json is no image: give prompts with --coco"),
        ("boxes.csv", "boxes.csv is no image: give prompts with --csv"),
        ("a.pdf", "a.pdf: this is a PDF, which cannot be read here"),
        ("empty.txt", "empty.txt names no file: write one path a line"),
        ("latin.txt", "latin.txt is not UTF-8"),
        ("folder.txt", r"folder.txt, line 2: .*/empty is a folder: give it as an input itself"),
        ("wrong.zarr", r"has the shape \[1, 2, 3, 4, 5\], and \[H,W\], .* save it in one of these forms"),
        ("damaged.zarr", r"damaged.zarr/zarr.json is damaged \(.*\): write the Zarr array again"),
        ("no-arrays", "no-arrays is a Zarr group without arrays"),
    ],
)
def test_what_cannot_be_an_input(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    for name, data in {
        "coco.json": b"{}",
        "boxes.csv": b"file,x,y,label",
        "a.pdf": b"%PDF-1.4",
        "a.png": b"x",
        "empty.txt": b"\n",
        "latin.txt": b"\xe4.png",
        "folder.txt": b"a.png\nempty",
        "wrong.zarr/.zarray": b'{"shape": [1, 2, 3, 4, 5]}',
        "damaged.zarr/zarr.json": b"{",
        "no-arrays/.zgroup": b"{}",
    }.items():
        write(tmp_path / name, data)
    with pytest.raises(InvalidInput, match=message):
        names(tmp_path / text)


def test_a_list_says_how_many_files_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    paths = write(tmp_path / "paths.txt", b"1.png\n2.png\na.png\n3.png\n4.png\n5.png\n")
    with pytest.raises(InvalidInput, match=r"names 5 file\(s\) that do not exist: .*1.png, .*3.png and 2 more;"):
        names(paths)


def test_no_input_and_standard_input_are_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no input"):
        names()
    with pytest.raises(InvalidInput, match="so it reads no standard input: write the paths to a file"):
        names("-")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    try:
        write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")))
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(InvalidInput, match="is not UTF-8: rename the file"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (errno.EACCES, InvalidInput, r"cannot read the folder .*/sub \(.*\): give yourself the right to read it"),
        (errno.ESTALE, JobStopped, r"its disk or network share does not work: run the same command again"),
    ],
)
def test_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], message: str
) -> None:
    write(tmp_path / "sub" / "a.png")
    scandir = os.scandir

    def failing(folder: Any) -> Any:
        if str(folder).endswith("sub"):
            raise OSError(code, os.strerror(code))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(kind, match=message):
        names(tmp_path)


def test_zarr_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr2(tmp_path / "in" / "a.zarr", np.zeros((2, 20, 30), np.uint8))
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    with pytest.raises(SetupError, match=r"need the package zarr: run `.*pip install .*`"):
        names(tmp_path / "in")
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    with pytest.raises(SetupError, match=r"Zarr arrays need Python 3.11 or later"):
        names(tmp_path / "in" / "a.zarr")


def test_a_link_to_nowhere_is_an_image_that_fails_later(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "nowhere")
    (found,) = find_sources([str(tmp_path)])
    assert (found.size, found.mtime_ns) == (0, 0)
    assert pages_of(found) == [None]


TREES = st.lists(
    st.lists(st.sampled_from(("a", "b", "a b", "a-", "Z")), max_size=3).map("/".join), min_size=1, max_size=12
)


@given(trees=st.lists(TREES, min_size=1, max_size=2), data=st.data())
def test_random_trees_give_each_file_once_in_order_under_one_name(
    tmp_path_factory: pytest.TempPathFactory, trees: list[list[str]], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("trees")
    expected: list[Path] = []
    for number, folders in enumerate(trees):
        own: dict[tuple[str, ...], Path] = {}
        for folder in folders:
            path = root / str(number) / folder / f"{data.draw(st.integers(0, 3))}.png"
            own[path.parts] = write(path)
        expected += [own[parts] for parts in sorted(own)]
    found = list(find_sources([str(root / str(number)) for number in range(len(trees))]))
    assert [each.path for each in found] == expected
    assert len({each.name for each in found}) == len(found)
    assert all(str(each.path).endswith(each.name) for each in found)


def test_pages_of_plain_images_stacks_and_arrays(tmp_path: Path) -> None:
    planes = np.arange(3 * 2 * 20 * 30, dtype=np.uint16).reshape(3, 2, 20, 30)
    files = {
        write(tmp_path / "a.png", png()): [None],
        stack(tmp_path / "one.tif", planes[0, 0]): [None],
        stack(tmp_path / "three.tif", planes[:, 0]): [0, 1, 2],
        stack(tmp_path / "imagej.tif", planes, imagej=True, metadata={"axes": "ZCYX"}): [0, 1, 2],
        stack(tmp_path / "channels.tif", planes[:1], imagej=True, metadata={"axes": "ZCYX"}): [None],
        write(tmp_path / "broken.tif", b"II*\0\xff\xff\xff\xff"): [None],
        write(tmp_path / "empty.tif", b""): [None],
        write(tmp_path / "png.tif", png()): [None],
        zarr2(tmp_path / "n.zarr", planes[:, 0]): [0, 1, 2],
        zarr2(tmp_path / "hw.zarr", planes[0, 0]): [None],
        zarr2(tmp_path / "hwc.zarr", np.zeros((20, 30, 3), np.uint8)): [None],
        zarr2(tmp_path / "nhwc.zarr", np.zeros((2, 20, 30, 3), np.uint8)): [0, 1],
        zarr2(tmp_path / "none.zarr", np.zeros((0, 20, 30), np.uint8)): [None],
    }
    assert {path.name: list(pages_of(source(path))) for path in files} == {
        path.name: pages for path, pages in files.items()
    }


def test_a_share_that_goes_away_while_pages_are_counted_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(stack(tmp_path / "a.tif", np.zeros((2, 4, 5), np.uint8)))

    def failing(self: Path, *_: Any, **__: Any) -> Iterator[Any]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(JobStopped, match="does not work"):
        pages_of(found)
