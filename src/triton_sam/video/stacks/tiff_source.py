"""TIFF stacks: pages that are slices, times and channels, as ImageJ, OME and tifffile say, or nobody."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from triton_sam.core.file_bytes import FileBytes
from triton_sam.core.picture_samples import Samples
from triton_sam.core.tiff import TiffFile, check_meaning, upright_size
from triton_sam.core.tiff_pages import TiffPage
from triton_sam.core.tiff_stacks import axes_of, description_of
from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.video.clip import check_same_size
from triton_sam.video.stacks.contrast import parts_to_sample, spread, thinned
from triton_sam.video.stacks.dimensions import Dimension, Selection, dimension_name
from triton_sam.video.stacks.scale import VolumeForm, scale_of_tiff
from triton_sam.video.stacks.sources import Plane, shown_values

T = TypeVar("T")
_MOST_DIMENSIONS = 16


class TiffSource:
    """Reads a page at a time. Pages are numbered as they follow each other in the file."""

    may_be_rgb = False

    def __init__(self, path: Path, max_pixels: int) -> None:
        self.name = str(path)
        self.paths, self.notes, self.notices = [path], list[str](), list[str]()
        self._data = FileBytes(path)
        self._file = self._guarded(lambda: TiffFile(self._data, max_pixels=max_pixels), self.name)
        first = self._file.first
        text = self._guarded(lambda: description_of(first), self.name)
        self._pages = self._guarded(lambda: self._dimensions_of_pages(text), self.name)
        self._first = self._decoded(0, f"frame 0 of {self.name}")
        self._has_colours = self._first.colours == 3
        channels = 1 if self._has_colours or self._first.colours == 1 else self._first.channels
        if self._has_colours or channels > 1:  # one channel of pages is none beside those of a pixel
            self._pages = tuple(Dimension("", 1) if each == Dimension("c", 1) else each for each in self._pages)
        is_named = any(each.name == "c" for each in self._pages)
        of_page = [Dimension("sample" if is_named else "c", channels)] if channels > 1 else []
        width, height = upright_size(first)
        colours = [Dimension("s", 3)] if self._has_colours else []
        self.dimensions = (*self._pages, *of_page, Dimension("y", height), Dimension("x", width), *colours)
        self.dtype = shown_values(self._first).dtype
        scale = self._guarded(lambda: scale_of_tiff(first.directory, text), self.name)
        self.form = VolumeForm(scale=scale, is_ome="<OME" in text)

    def plane(self, selection: Selection, index: int) -> Plane:
        number = 0
        for place, each in enumerate(self._pages):
            at = index if place == selection.frames else selection.fixed[place]
            number = number * each.size + at
        where = f"frame {index} of {self.name}"
        values = shown_values(self._first if number == 0 else self._decoded(number, where))
        if self._has_colours:
            if selection.colours is not None:
                return np.moveaxis(values, 0, 2)
            return self._one(values, selection.fixed[len(self.dimensions) - 1])
        return self._one(values, selection.fixed.get(len(self._pages), 0) if len(values) > 1 else 0)

    def sample(self, selection: Selection) -> Iterator[Plane]:
        width, height = selection.size
        wanted = parts_to_sample(width * height)
        for index in spread(selection.length, wanted):
            yield thinned(self.plane(selection, index), min(wanted, selection.length))

    def stem(self, index: int) -> str | None:
        return None

    def close(self) -> None:
        """Nothing: overlays read frames behind the end of a session. The file is closed when the clip goes."""

    def _one(self, values: Plane, index: int) -> Plane:
        plane: Plane = values[index]
        return plane

    def _decoded(self, number: int, where: str) -> Samples:
        def decode() -> Samples:
            page = self._file.directory(number)
            self._check_alike(page, where)
            return self._file.samples(page)

        return self._guarded(decode, where)

    def _check_alike(self, page: TiffPage, where: str) -> None:
        """InvalidInput for a page of another size or kind than the first."""
        first = self._file.first
        check_same_size(where, upright_size(page), upright_size(first))
        if (page.samples, page.dtype, page.photometric) != (first.samples, first.dtype, first.photometric):
            raise InvalidInput(
                f"{where} has {page.samples} channel(s) of {page.dtype} and the first frame {first.samples} of "
                f"{first.dtype}: all frames must be alike, so write them anew in one kind"
            )

    def _dimensions_of_pages(self, text: str) -> tuple[Dimension, ...]:
        """From the one that changes most slowly to the fastest."""
        stack, samples = self._file.stack, self._file.first.samples
        if samples > 1:
            _check_colours(self._file.first)
        count = stack.pages * stack.channels
        axes = axes_of(text)
        if axes is not None:
            sizes = dict(axes.sizes)
            if "<OME" in text and sizes["C"] % samples == 0:
                sizes["C"] //= samples  # it counts the samples of a pixel too
            if axes.is_told and math.prod(sizes.values()) == count:
                return tuple(Dimension(letter.lower(), sizes[letter]) for letter in reversed(axes.order))
            self.notes += [f"the metadata of {self.name} do not fit its {count} pages, and are ignored"] * axes.is_told
        return _of_tifffile(text, self._file.first, count) or (Dimension("", count),)

    def _guarded(self, action: Callable[[], T], where: str) -> T:
        """Names the frame in errors; what the system says of the file comes first."""
        try:
            return guarded(action)
        except TritonSamError as error:
            if self._data.failure is not None:
                failure, self._data.failure = self._data.failure, None
                raise InvalidInput(f"{where} cannot be read: {failure.strerror or failure}") from None
            text = str(error)
            raise type(error)(text if text.startswith(where) else f"{where} cannot be used: {text}") from None


def _check_colours(page: TiffPage) -> None:
    """Names a compression that cannot be decoded; channels of an unknown kind are no error, for one is chosen."""
    try:
        check_meaning(page)
    except InvalidInput as error:
        if "channels that are not declared" not in str(error):
            raise


def _of_tifffile(text: str, first: TiffPage, count: int) -> tuple[Dimension, ...] | None:
    """The shape that tifffile writes as JSON, with or without axes; None if there is none that fits."""
    if not text.startswith('{"shape":'):
        return None
    try:
        document = json.loads(text)
        shape, axes = document["shape"], document.get("axes")
        sizes = [int(size) for size in shape][:_MOST_DIMENSIONS]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    inner = {first.width, first.height}
    for behind in (2, 3):  # y and x, and with them the samples of a pixel
        outer = sizes[:-behind]
        if math.prod(outer) == count and inner <= set(sizes[len(outer) :]):
            names = axes.lower() if isinstance(axes, str) and len(axes) == len(sizes) else ""
            is_known = names and not set(names[: len(outer)]) & {"q", "y", "x", "s"}
            return tuple(
                Dimension(dimension_name(names[place]) if is_known else "", size) for place, size in enumerate(outer)
            )
    return None
