"""Text files with one path a line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from triton_sam.batch.inputs.faults import fault_of_file, stopped_by
from triton_sam.core import zarr_arrays
from triton_sam.errors import InvalidInput

_MOST_NAMED = 3


class PathList:
    """The images that a text file names: UTF-8, one path a line, relative to the file's own folder.

    Their names are as the file has them; if it has absolute paths or ``..``, relative to the deepest folder that holds
    all of them. Empty lines are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def images(self) -> Iterator[tuple[str, Path]]:
        """(name, absolute path); InvalidInput says how many files are missing, before the first is given."""
        base = self._checked_base()
        for _, image in self._lines():
            yield Path(image[len(base) :]).as_posix().lstrip("/"), Path(image)

    def _checked_base(self) -> str:
        """The folder that names are relative to."""
        own = str(self.path.parent)
        base = own
        missing: list[str] = []
        count = lines = 0
        for number, image in self._lines():
            lines += 1
            if not self._is_there(number, image):
                count += 1
                missing += [image] if len(missing) < _MOST_NAMED else []
            folder = os.path.dirname(image)  # noqa: PTH120
            if lines == 1 and not _is_below(folder, own):
                base = folder
            elif not _is_below(folder, base):
                base = os.path.commonpath((base, folder))
        if not lines:
            raise InvalidInput(f"{self.path} names no file: write one path a line")
        if count:
            more = "" if count <= _MOST_NAMED else f" and {count - _MOST_NAMED:,} more"
            raise InvalidInput(
                f"{self.path} names {count:,} file(s) that do not exist: {', '.join(missing)}{more}; "
                f"paths are relative to {own}"
            )
        return base

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Numbers and absolute paths; no Path for each, because there may be a million."""
        own = str(self.path.parent)
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    text = line.strip()
                    if text:
                        yield number, os.path.abspath(os.path.join(own, text))  # noqa: PTH100, PTH118 - links stay
        except UnicodeDecodeError:
            raise InvalidInput(f"{self.path} is not UTF-8: save it as a UTF-8 text file") from None
        except OSError as error:
            raise fault_of_file(error, self.path) from None

    def _is_there(self, number: int, path: str) -> bool:
        image = Path(path)
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116
                return True
            description = zarr_arrays.description_of(image)
        except OSError as error:
            stopped = stopped_by(error, image)
            if stopped is not None:
                raise stopped from None
            return False
        except ValueError:  # a NUL in it
            return False
        if description is None:
            raise InvalidInput(
                f"{self.path}, line {number}: {image} is a folder: give it as an input itself, or name its files"
            )
        if zarr_arrays.is_group(description):
            raise zarr_arrays.refuse_group(image)
        return True


def _is_below(folder: str, base: str) -> bool:
    return folder == base or folder.startswith(base.rstrip(os.sep) + os.sep)
