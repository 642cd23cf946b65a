"""The directories (IFDs) of a TIFF file: their tags, and the chain from page to page.

Reads untrusted bytes: every count and offset is compared with the file's length before anything is allocated, and the
chain of pages may be as long or as circular as it likes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput

#: First bytes -> (byte order, whether offsets have 64 bits).
MAGIC = {
    b"II*\0": ("<", False),
    b"MM\0*": (">", False),
    b"II+\0": ("<", True),
    b"MM\0+": (">", True),
}
_TYPES = {1: "u1", 3: "u2", 4: "u4", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 13: "u4", 16: "u8", 17: "i8", 18: "u8"}
#: Bytes of one value of each tag type.
TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_MAX_TAGS = 4096
#: Of one file. Walking a chain of this length takes about a second.
MAX_PAGES = 65_536
_MAX_TAGS_OF_CHAIN = 1_000_000
_SUBFILE_TYPE, _OLD_SUBFILE_TYPE = 254, 255
#: Bits of NewSubfileType: a smaller copy of another page, or its mask.
_REDUCED_OR_MASK = 0b101


class FileData(Protocol):
    """The bytes of a file that are read when they are asked for, where a file may be larger than the memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...

    def __bytes__(self) -> bytes: ...


def is_tiff(data: bytes | memoryview | FileData) -> bool:
    """Whether a file begins as a TIFF or BigTIFF does."""
    return bytes(data[:4]) in MAGIC


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    count: int
    value: bytes
    """The value itself if it is short enough, else its offset."""


@dataclass(frozen=True, slots=True)
class Directory:
    """One IFD: the tags of a page."""

    source: Directories
    entries: dict[int, _Entry]
    following: int
    """Offset of the next page's directory; 0 after the last."""

    def raw(self, tag: int, limit: int = 2**31) -> bytes | None:
        """The bytes of a tag's value, at most ``limit``; None if there is no such tag."""
        entry = self.entries.get(tag)
        if entry is None:
            return None
        size = TYPE_SIZES.get(entry.kind, 0) * entry.count
        if size <= len(entry.value):
            return entry.value[:size]
        source = self.source
        (offset,) = struct.unpack(source.order + source.offset_format, entry.value)
        if offset + size > len(source.data):
            raise ValueError(f"tag {tag} lies outside the file")
        return bytes(source.data[offset : offset + min(size, limit)])

    def numbers(self, tag: int) -> npt.NDArray[Any] | None:
        """The whole numbers of a tag; None if there is no such tag."""
        value = self.raw(tag)
        if value is None:
            return None
        kind = _TYPES.get(self.entries[tag].kind)
        if kind is None or not value:
            raise ValueError(f"tag {tag} has no whole numbers")
        return np.frombuffer(value, self.source.order + kind)

    def number(self, tag: int, default: int) -> int:
        """The first whole number of a tag, or the default if there is no such tag."""
        values = self.numbers(tag)
        return default if values is None else int(values[0])

    @property
    def is_page(self) -> bool:
        """Whether it is an image of its own: no thumbnail, no level of a pyramid, no mask of another page."""
        kind = self.entries.get(_SUBFILE_TYPE)
        if kind is not None:
            return self.number(_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK == 0
        return _OLD_SUBFILE_TYPE not in self.entries or self.number(_OLD_SUBFILE_TYPE, 1) != 2


class Directories:
    """Reads the directories of one TIFF file."""

    def __init__(self, data: bytes | memoryview | FileData) -> None:
        self.data: memoryview | FileData = memoryview(data) if isinstance(data, bytes) else data
        self.order, self.is_big = MAGIC[bytes(data[:4])]
        self.offset_format = "Q" if self.is_big else "I"
        self.first_offset = self._unpack(self.offset_format, 8 if self.is_big else 4)

    def first(self) -> Directory:
        """The directory of the first page."""
        if self.first_offset == 0:
            raise ValueError("the TIFF has no page")
        return self.at(self.first_offset)

    def at(self, offset: int) -> Directory:
        """The directory at an offset."""
        count_format, size = ("Q", 20) if self.is_big else ("H", 12)
        count = self._unpack(count_format, offset)
        if not 0 < count <= _MAX_TAGS:
            raise ValueError(f"a directory has {count} tags")
        start = offset + struct.calcsize(count_format)
        end = start + count * size
        if end > len(self.data):
            raise ValueError("a directory lies outside the file")
        layout = struct.Struct(f"{self.order}HH{self.offset_format}{8 if self.is_big else 4}s")
        entries = {
            code: _Entry(kind, length, value) for code, kind, length, value in layout.iter_unpack(self.data[start:end])
        }
        # Some writers leave out the last offset.
        has_next = end + struct.calcsize(self.offset_format) <= len(self.data)
        return Directory(self, entries, self._unpack(self.offset_format, end) if has_next else 0)

    def chain(self) -> list[int]:
        """Offsets of the directories of all pages in order, without thumbnails and masks of other pages.

        Raises:
            InvalidInput: there are more than MAX_PAGES, or the chain is a circle.
        """
        found: list[int] = []
        seen: set[int] = set()
        offset, tags = self.first_offset, 0
        while offset:
            if offset in seen:
                raise InvalidInput("the TIFF's pages form a circle, so it is damaged: write it again")
            seen.add(offset)
            directory = self.at(offset)
            tags += len(directory.entries)
            if len(seen) > MAX_PAGES or tags > _MAX_TAGS_OF_CHAIN:
                raise InvalidInput(f"the TIFF has more than {MAX_PAGES:,} pages: split it into several files")
            if not found or directory.is_page:
                found.append(offset)
            offset = directory.following
        return found

    def _unpack(self, form: str, offset: int) -> int:
        size = struct.calcsize(form)
        if offset < 0 or offset + size > len(self.data):
            raise ValueError("a directory lies outside the file")
        value: int = struct.unpack(self.order + form, self.data[offset : offset + size])[0]
        return value
