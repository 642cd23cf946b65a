"""Clips whose frames are image files or images, one by one: a folder, or a list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits, check_same_size, upright_size

_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("png", "apng", "jpg", "jpeg", "jpe", "jfif", "webp", "bmp", "dib", "gif", "pbm", "pgm", "ppm", "pnm"),
        *("jp2", "j2k", "j2c", "jpx", "tif", "tiff"),
    )
)
_NUMBERS = re.compile(r"(\d+)")
_SHOWN = 3


class ListClip(Clip):
    """Image files (paths or bytes), arrays or Pillow images, in order. Files are sent as they are, others as PNG."""

    def __init__(
        self, items: Sequence[Any], name: str, limits: ClipLimits | None = None, *, ignored: Sequence[str] = ()
    ) -> None:
        """
        Args:
            ignored: names of files that are no frames.
        """
        self.name = name
        self._items = items
        self._limits = limits or ClipLimits.of_settings()
        self._ignored = ignored
        if not len(items):
            raise InvalidInput(f"there are no frames in {name}{_instead(ignored)}")
        self.length = self.expected = len(items)
        self.size = upright_size(self._data(0), self._limits, self._where(0))

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        assert self.length is not None
        end = self.length if last is None else min(last + 1, self.length)
        for index in range(max(0, first), end):
            data = self._data(index)
            check_same_size(self._where(index), upright_size(data, self._limits, self._where(index)), self.size)
            yield ClipFrame(index, data)

    def stem(self, index: int) -> str | None:
        item = self._items[index] if index < len(self._items) else None
        return Path(item).stem if isinstance(item, str | os.PathLike) else None

    @property
    def paths(self) -> list[Path]:
        return [Path(item) for item in self._items if isinstance(item, str | os.PathLike)]

    @property
    def notices(self) -> list[str]:
        if not self._ignored:
            return []
        count = len(self._ignored)
        return [f"{count} file{'s' * (count > 1)} of {self.name} ignored, which are no images: {_some(self._ignored)}"]

    def _data(self, index: int) -> bytes:
        item = self._items[index]
        if isinstance(item, str | os.PathLike):
            return self._file(index, Path(item))
        try:
            return file_bytes(item)
        except InvalidInput as error:
            raise InvalidInput(f"frame {index} cannot be used: {error}") from None

    def _file(self, index: int, path: Path) -> bytes:
        try:
            size = path.stat().st_size
            if size > self._limits.bytes:
                raise TooLarge(
                    f"{self._where(index)} has {size:,} bytes and {self._limits.bytes:,} are allowed: save it smaller"
                )
            return path.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{self._where(index)} cannot be read: {error.strerror or error}") from None

    def _where(self, index: int) -> str:
        item = self._items[index]
        return f"frame {index} ({Path(item).name})" if isinstance(item, str | os.PathLike) else f"frame {index}"


def folder_clip(folder: Path, limits: ClipLimits | None = None) -> ListClip:
    """The images of a folder in natural order (``2.png`` before ``10.png``); links are followed."""
    frames: list[str] = []
    ignored: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.is_dir():
                    continue
                # A link to nothing is a frame that is missing, which must not go unnoticed.
                is_frame = Path(entry.name).suffix.lower() in _SUFFIXES and (entry.is_file() or entry.is_symlink())
                (frames if is_frame else ignored).append(entry.name)
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be read: {error.strerror or error}") from None
    frames.sort(key=natural)
    return ListClip([folder / name for name in frames], str(folder), limits, ignored=sorted(ignored, key=natural))


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key that sorts numbers in names by their values."""
    parts = _NUMBERS.split(name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts if part], name


def _instead(ignored: Sequence[str]) -> str:
    return f", only other files: {_some(ignored)}" if ignored else ": it is empty"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
