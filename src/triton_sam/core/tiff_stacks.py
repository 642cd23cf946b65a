"""Which pages of a TIFF are slices, and which are channels of one image: ImageJ's and OME's metadata."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass

from triton_sam.core.tiff_directories import Directories
from triton_sam.core.tiff_pages import TiffPage, read_page

_DESCRIPTION = 270
_MAX_DESCRIPTION = 2**22
_MAX_NAME = 100
_OME_PIXELS = re.compile(r"<(?:\w{1,20}:)?Pixels\s([^>]{1,4000})>")
_OME_CHANNEL = re.compile(r"<(?:\w{1,20}:)?Channel\s([^>]{0,4000})>")
_ATTRIBUTE = re.compile(r"""(\w{1,40})\s{0,9}=\s{0,9}(?:"([^"]{0,2000})"|'([^']{0,2000})')""")


@dataclass(frozen=True, slots=True)
class Axes:
    """How many channels, slices and times follow each other, and in which order."""

    order: str
    """The axes of the pages, fastest first: "CZT" if the channels of a slice follow each other."""
    sizes: dict[str, int]
    names: tuple[str, ...] | None = None
    is_told: bool = True
    """Whether the file says what its pages are, and not only how many there are."""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The pages of a file; each has ``channels`` directories of its own."""

    directories: Directories
    first: TiffPage
    offsets: list[int]
    axes: Axes
    frame_bytes: int = 0
    """Distance of the pages in the file, where one directory describes them all."""

    @property
    def channels(self) -> int:
        return self.axes.sizes["C"]

    @property
    def channel_names(self) -> tuple[str, ...] | None:
        return self.axes.names

    @property
    def pages(self) -> int:
        """Slices x times."""
        return self.axes.sizes["Z"] * self.axes.sizes["T"]

    def page(self, index: int, channel: int) -> TiffPage:
        """The directory of one channel of one page."""
        sizes = self.axes.sizes
        time, slice_ = divmod(index, sizes["Z"])
        at = {"C": channel, "Z": slice_, "T": time}
        number, step = 0, 1
        for axis in self.axes.order:
            number += at[axis] * step
            step *= sizes[axis]
        return self.directory(number)

    def directory(self, number: int) -> TiffPage:
        """One page in the order of the file."""
        if self.frame_bytes:
            return self.first.shifted(number * self.frame_bytes)
        return self.first if number == 0 else read_page(self.directories.at(self.offsets[number]))


def stack_of(directories: Directories, first: TiffPage) -> Stack:
    """The pages of a file; metadata that contradict the number of pages are ignored."""
    offsets = directories.chain()
    count = len(offsets)
    plain = Axes("CZT", {"C": 1, "Z": count, "T": 1})
    text = description_of(first)
    axes = axes_of(text)
    if axes is None or first.samples > 1:
        return Stack(directories, first, offsets, plain)
    total = math.prod(axes.sizes.values())
    if total == count:
        return Stack(directories, first, offsets, axes)
    # ImageJ writes the pixels of a large stack in one block after a single directory.
    end = int(first.offsets[0]) + total * first.frame_bytes
    if text.startswith("ImageJ=") and count == 1 and first.compression == 1 and end <= len(directories.data):
        return Stack(directories, first, offsets, axes, first.frame_bytes)
    return Stack(directories, first, offsets, plain)


def may_have_channels(first: TiffPage) -> bool:
    """Whether the first page's metadata, by themselves, say that channels are stored as pages."""
    axes = axes_of(description_of(first))
    return axes is not None and first.samples == 1 and axes.sizes["C"] > 1


def description_of(first: TiffPage) -> str:
    """The text of a page's ImageDescription, which has the metadata of ImageJ, OME and tifffile."""
    raw = first.directory.raw(_DESCRIPTION, _MAX_DESCRIPTION)
    return "" if raw is None else raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def axes_of(text: str) -> Axes | None:
    """Of ImageJ's and OME's metadata; None for other texts."""
    return _imagej_axes(text) if text.startswith("ImageJ=") else _ome_axes(text) if "<OME" in text else None


def _imagej_axes(text: str) -> Axes | None:
    fields = dict(line.split("=", 1) for line in text.splitlines()[:100] if "=" in line)
    names = {"C": "channels", "Z": "slices", "T": "frames"}
    sizes = {axis: _whole(fields.get(name, "1")) for axis, name in names.items()}
    is_told = math.prod(sizes.values()) != 1
    if not is_told:
        sizes["Z"] = _whole(fields.get("images", "1"))
    return Axes("CZT", sizes, is_told=is_told) if min(sizes.values()) > 0 else None


def _ome_axes(text: str) -> Axes | None:
    """Of the first image. Read by its attributes: an XML parser would follow what an untrusted file tells it to."""
    start = _OME_PIXELS.search(text)
    if start is None:
        return None
    pixels = _attributes(start[1])
    sizes = {axis: _whole(pixels.get(f"Size{axis}", "1")) for axis in "CZT"}
    order = pixels.get("DimensionOrder", "XYCZT")
    if sorted(order) != sorted("XYCZT") or not order.startswith("XY") or min(sizes.values()) < 1:
        return None
    found = [_attributes(channel[1]).get("Name") for channel in _OME_CHANNEL.finditer(text[start.end() :])]
    names = tuple(name[:_MAX_NAME] for name in found[: sizes["C"]] if name)
    return Axes(order[2:], sizes, names if len(names) == sizes["C"] else None)


def _attributes(text: str) -> dict[str, str]:
    return {
        match[1]: html.unescape(match[2] if match[2] is not None else match[3]) for match in _ATTRIBUTE.finditer(text)
    }


def _whole(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
