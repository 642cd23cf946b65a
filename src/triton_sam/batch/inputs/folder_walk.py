"""Images in folders, and those that a pattern like ``data/**/*.png`` names, in one walk."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from triton_sam.batch.inputs.faults import fault_of_folder
from triton_sam.batch.inputs.kinds import is_image
from triton_sam.core import zarr_arrays

#: The pattern that is a whole folder.
EVERYTHING = ("**",)
#: A folder with it is a job's output, whose overlays and labels are no input.
_JOB_FILE = "job.sqlite3"
#: Stands for "all below", where the pattern has named a folder.
_BELOW = -1
_Places = frozenset[int]


class FolderWalk:
    """Finds the images below a folder, in the order of their paths' parts; one folder is in memory at a time.

    Hidden files and folders, files of other kinds, excluded folders and those of other jobs are left out. Links are
    followed, and each folder is read once, so links in a circle end.
    """

    def __init__(self, pattern: Sequence[str], exclude: Sequence[Path]) -> None:
        self._pattern = tuple(pattern)
        self._seen: set[int] = set()
        for folder in exclude:
            self._is_new(str(folder))

    def images(self, root: Path) -> Iterator[tuple[str, Path]]:
        """(path relative to ``root`` with ``/``, path) of each image file and Zarr array."""
        levels = [self._entries(str(root), "", frozenset((0,)), is_root=True)]
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
                continue
            name, path, places = entry
            if places is None:
                yield name, Path(path)
                continue
            folder = Path(path)
            array = _is_array(folder)
            if array is None:
                levels.append(self._entries(path, f"{name}/", places, is_root=False))
            elif self._is_match(places):
                if not array:
                    raise zarr_arrays.refuse_group(folder)
                yield name, folder
            elif not array:  # the pattern may name an array in it
                levels.append(self._entries(path, f"{name}/", places, is_root=False))

    def _entries(
        self, folder: str, prefix: str, places: _Places, *, is_root: bool
    ) -> Iterator[tuple[str, str, _Places | None]]:
        """(relative name, path, None) of an image file, or with the places in the pattern of a folder; sorted."""
        if not self._is_new(folder) and not is_root:
            return
        if self._is_match(places) and not is_root:
            places = frozenset((_BELOW,))
        try:
            with os.scandir(folder) as listed:
                found = [(entry.name, _is_folder(entry)) for entry in listed]
        except OSError as error:
            raise fault_of_folder(error, Path(folder)) from None
        if not is_root and (_JOB_FILE, False) in found:
            return
        found = [(name, is_folder) for name, is_folder in found if is_folder or is_image(name)]
        found.sort()
        for name, is_folder in found:
            after = self._after(places, name)
            if is_folder and after:
                yield prefix + name, os.path.join(folder, name), after  # noqa: PTH118 - a million of them
            elif not is_folder and self._is_match(after):
                yield prefix + name, os.path.join(folder, name), None  # noqa: PTH118

    def _after(self, places: _Places, name: str) -> _Places:
        """Where in the pattern one is after this name; nothing if it does not fit."""
        hidden = name.startswith(".")
        found: set[int] = set()
        for place in self._with_skipped(places):
            if place == len(self._pattern):
                continue
            part = "**" if place == _BELOW else self._pattern[place]
            if part == "**":
                if not hidden:
                    found.add(place)
            elif (not hidden or part.startswith(".")) and _expression(part).match(name):
                found.add(place + 1)
        return frozenset(found)

    def _is_match(self, places: _Places) -> bool:
        return _BELOW in places or len(self._pattern) in self._with_skipped(places)

    def _with_skipped(self, places: _Places) -> set[int]:
        """``**`` may stand for no folder at all."""
        found = set(places)
        for place in sorted(places):
            while 0 <= place < len(self._pattern) and self._pattern[place] == "**":
                place += 1
                found.add(place)
        return found

    def _is_new(self, folder: str) -> bool:
        try:
            facts = os.stat(folder)  # noqa: PTH116
        except OSError:
            return True  # listing it says what is wrong
        identity = facts.st_dev << 64 | facts.st_ino
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def _is_array(folder: Path) -> bool | None:
    """Whether a folder is a Zarr array; None if it is neither an array nor a group."""
    try:
        description = zarr_arrays.description_of(folder)
        return None if description is None else not zarr_arrays.is_group(description)
    except OSError as error:
        raise fault_of_folder(error, folder) from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


@lru_cache(maxsize=256)
def _expression(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
