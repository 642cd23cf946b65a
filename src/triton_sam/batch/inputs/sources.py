"""What the user gave as inputs -> the sources of a job, in an order that is the same each time."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from triton_sam.batch.inputs.faults import fault_of_file, fault_of_folder, stopped_by
from triton_sam.batch.inputs.folder_walk import EVERYTHING, FolderWalk
from triton_sam.batch.inputs.kinds import LISTS, PICTURES, READ, is_image, suffix_of
from triton_sam.batch.inputs.path_lists import PathList
from triton_sam.batch.records import Source
from triton_sam.core import zarr_arrays
from triton_sam.core.file_bytes import FileBytes
from triton_sam.core.file_kinds import refuse_known_kinds
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.core.tiff_directories import is_tiff
from triton_sam.errors import InvalidInput

_NO_LIMIT = 2**62
_MAGIC = re.compile(r"[*?\[]")
_Images = Iterator[tuple[str, Path]]


@dataclass(frozen=True, slots=True)
class _Input:
    """One input as it was given."""

    text: str
    prefix: str
    """Of its names, where they are not unique: its folder's own name."""
    images: Callable[[], _Images]
    """(name, absolute path) in order."""
    may_repeat: bool = False
    """Whether it may give a file twice."""


def find_sources(inputs: Sequence[str], *, exclude: Sequence[Path] = ()) -> Iterator[Source]:
    """The files and arrays of a job, each once, in the order of the inputs, and inside a folder sorted by path.

    Names are relative to the folder that was given (for a pattern: to its part without wildcards). If two inputs have
    the same name, all names of both are prefixed by their folders' own names. Hidden files, those of other kinds and
    outputs of jobs are skipped. A source of size 0 and time 0 could not be looked at; reading it says why.

    One input is read in a stream. Several are first gathered in a temporary file, because only then is known which
    names are unique; no list of all of them is in memory.

    Args:
        inputs: folders, patterns, image files, Zarr arrays, text files with one path a line.
        exclude: folders that are no input, such as the job's output.

    Raises:
        InvalidInput: an input does not exist, cannot be read or has no image.
        JobStopped: a disk or network share does not respond.
        SetupError: there is a Zarr array, and the package for it is missing.
    """
    if not inputs:
        raise InvalidInput("there is no input: give a folder, a pattern or image files")
    given = [_input_of(text, exclude) for text in inputs]
    if len(given) == 1 and not given[0].may_repeat:
        return (_source(name, path) for name, path in _some(given[0]))
    return _sources_of_several(given)


def pages_of(source: Source) -> Sequence[int | None]:
    """[None] for one image, else the numbers of its pages or planes. No pixel is read.

    A file that is broken is one image, which fails when it is its turn. Channels are no pages.

    Raises:
        JobStopped: a disk or network share does not respond.
    """
    if suffix_of(source.path) in PICTURES and source.size > 0:
        return [None]
    try:
        if source.path.is_dir():
            count = zarr_arrays.shape_of(source.path).planes
            return [None] if count is None else range(count)
        return _pages_of_tiff(source.path)
    except InvalidInput:
        return [None]
    except OSError as error:
        fault = fault_of_file(error, source.path)
        if not isinstance(fault, InvalidInput):
            raise fault from None
        return [None]


def _pages_of_tiff(path: Path) -> Sequence[int | None]:
    data = FileBytes(path)
    try:
        if not is_tiff(data):
            return [None]
        count = ImagePlanes(data, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).pages
        return range(count) if count > 1 else [None]
    except InvalidInput:
        if data.failure is not None:
            raise data.failure from None
        raise
    finally:
        data.close()


def _input_of(text: str, exclude: Sequence[Path]) -> _Input:
    """One input; InvalidInput if it cannot be one."""
    if text == "-":
        raise InvalidInput(
            "a job must find the same images when it goes on, so it reads no standard input: "
            "write the paths to a file and give that, for example paths.txt"
        )
    path = _absolute(text)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        stopped = stopped_by(error, path) if isinstance(error, OSError) else None
        if stopped is not None:
            raise stopped from None
        if _MAGIC.search(text):
            return _pattern(text, exclude)
        raise InvalidInput(f"the input {text} does not exist: give a folder, a pattern or image files") from None
    _refuse_excluded(text, path, exclude)
    if stat.S_ISDIR(mode):
        return _folder(text, path, exclude)
    if suffix_of(path) in LISTS:
        return _Input(text, path.parent.name, PathList(path).images, may_repeat=True)
    _check_file(text, path)
    return _Input(text, path.parent.name, lambda: iter([(path.name, path)]))


def _folder(text: str, path: Path, exclude: Sequence[Path]) -> _Input:
    try:
        description = zarr_arrays.description_of(path)
        if description is None:
            return _Input(text, path.name, partial(FolderWalk(EVERYTHING, exclude).images, path))
        if zarr_arrays.is_group(description):
            raise zarr_arrays.refuse_group(path)
    except OSError as error:
        raise fault_of_folder(error, path) from None
    zarr_arrays.shape_of(path)
    return _Input(text, path.parent.name, lambda: iter([(path.name, path)]))


def _pattern(text: str, exclude: Sequence[Path]) -> _Input:
    parts = Path(text).expanduser().parts
    fixed = next(place for place, part in enumerate(parts) if _MAGIC.search(part))
    base = _absolute(str(Path(*parts[:fixed])))
    if not base.is_dir():
        raise InvalidInput(f"the pattern {text} is for the folder {base}, which does not exist: check its spelling")
    _refuse_excluded(text, base, exclude)
    return _Input(text, base.name, partial(FolderWalk(parts[fixed:], exclude).images, base))


def _check_file(text: str, path: Path) -> None:
    """InvalidInput for a file that is certainly no image; its suffix may be an unusual one."""
    for suffix, option in ((".json", "--coco"), (".csv", "--csv")):
        if suffix_of(path) == suffix:
            raise InvalidInput(f"the input {text} is no image: give prompts with {option}, and images as inputs")
    if is_image(path.name):
        return
    try:
        with path.open("rb") as file:
            refuse_known_kinds(file.read(1024))
    except InvalidInput as error:
        raise InvalidInput(f"the input {text}: {error}") from None
    except OSError as error:
        raise fault_of_file(error, path) from None


def _refuse_excluded(text: str, path: Path, exclude: Sequence[Path]) -> None:
    for folder in exclude:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InvalidInput(f"the input {text} lies in the output folder {folder}: choose another --out")


def _some(given: _Input) -> _Images:
    """The images of an input; InvalidInput if there is none, SetupError if they cannot be read."""
    count = 0
    can_zarr = False
    for name, path in given.images():
        count += 1
        _check_text(path)
        if not can_zarr and not is_image(name) and path.is_dir():
            zarr_arrays.check_zarr()
            can_zarr = True
        yield name, path
    if not count:
        raise InvalidInput(f"the input {given.text} has no image: {READ} are read")


def _check_text(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"the path {os.fsencode(path)!r} is not UTF-8: rename the file") from None


def _sources_of_several(given: Sequence[_Input]) -> Iterator[Source]:
    """With unique names, each file once: the first input that has it gives it."""
    with closing(sqlite3.connect("")) as database:  # a temporary file, which is gone with it
        database.execute(
            "CREATE TABLE found (number INTEGER PRIMARY KEY, input INTEGER, name TEXT, path TEXT, identity TEXT UNIQUE)"
        )
        for number, each in enumerate(given):
            database.executemany(
                "INSERT OR IGNORE INTO found (input, name, path, identity) VALUES (?, ?, ?, ?)",
                ((number, name, str(path), _identity(path)) for name, path in _some(each)),
            )
        _make_unique(database, [each.prefix for each in given])
        for name, path in database.execute("SELECT name, path FROM found ORDER BY number"):
            yield _source(name, Path(path))


def _make_unique(database: sqlite3.Connection, prefixes: Sequence[str]) -> None:
    database.execute("CREATE INDEX by_name ON found (name)")
    twice = "SELECT name FROM found GROUP BY name HAVING count(*) > 1"
    rows = database.execute(f"SELECT DISTINCT input FROM found WHERE name IN ({twice})").fetchall()
    inputs = {number for (number,) in rows}
    database.create_function("prefixed", 2, lambda number, name: f"{prefixes[number]}/{name}".lstrip("/"))
    database.create_function("is_common", 1, lambda number: number in inputs)
    if inputs:
        database.execute("UPDATE found SET name = prefixed(input, name) WHERE is_common(input)")
    name = database.execute(f"{twice} LIMIT 1").fetchone()
    if name is not None:
        paths = database.execute("SELECT path FROM found WHERE name = ? ORDER BY number LIMIT 2", name).fetchall()
        raise InvalidInput(
            f"{paths[0][0]} and {paths[1][0]} would both be named {name[0]}: give a folder that holds both instead"
        )


def _source(name: str, path: Path) -> Source:
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):  # the folder of an array changes with each chunk that is added
            facts = (zarr_arrays.description_of(path) or path).stat()
    except OSError as error:
        stopped = stopped_by(error, path)
        if stopped is not None:
            raise stopped from None
        return Source(name, path, 0, 0)  # a link to nowhere, or it has just vanished
    return Source(name, path, facts.st_size, facts.st_mtime_ns)


def _absolute(text: str) -> Path:
    """Without resolving links: messages and results have the paths that the user knows."""
    try:
        return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100
    except RuntimeError:  # no such user
        return Path(os.path.abspath(text))  # noqa: PTH100


def _identity(path: Path) -> str:
    """Equal for a file that was reached over different folders; links to files count as files of their own."""
    return os.path.join(_real_folder(str(path.parent)), path.name)  # noqa: PTH118


@lru_cache(maxsize=1024)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
