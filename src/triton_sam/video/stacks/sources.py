"""Where the planes of a stack come from: the interface, and arrays, in memory or read part by part."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.core.deep_pixels import eight_bits
from triton_sam.core.picture_samples import Samples
from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput
from triton_sam.video.stacks.contrast import parts_to_sample, spread, thinned
from triton_sam.video.stacks.dimensions import Dimension, Selection, dimension_name
from triton_sam.video.stacks.scale import VolumeForm

Plane = npt.NDArray[Any]
#: Of frames that are decoded together, because they are in the same chunks; two such blocks are kept.
_BLOCK_BYTES, _BLOCKS = 64 * 2**20, 2
_KINDS = "buif"
_SEED = 26


class StackSource(Protocol):
    """Threads may share it."""

    name: str
    dimensions: tuple[Dimension, ...]
    dtype: np.dtype[Any]
    #: Whether a last dimension of 3 or 4 may be the colours, where the source does not say.
    may_be_rgb: bool
    form: VolumeForm
    #: The files it is read from.
    paths: list[Path]
    #: How it is understood, and what is wrong with it, in sentences.
    notes: list[str]
    notices: list[str]

    def plane(self, selection: Selection, index: int) -> Plane:
        """[H,W] or [H,W,C] of one frame; InvalidInput if it cannot be read."""

    def sample(self, selection: Selection) -> Iterator[Plane]:
        """Values from all over the stack, [N] each, so few that a stack of any size takes seconds."""

    def stem(self, index: int) -> str | None:
        """The name of a frame's file without its suffix; None if it has no file of its own."""

    def close(self) -> None:
        """Lets go of files."""


def shown_values(samples: Samples) -> Plane:
    """[C,H,W] of an image's samples: RGB of 8 bits on white, zero as black; fewer than 8 bits become 8."""
    if samples.colours == 3:
        if samples.values.dtype == np.uint8:
            return np.moveaxis(np.asarray(samples.rgb()), 2, 0)
        return samples.values[:3]
    if samples.bits is not None and samples.bits < 8:
        seen = eight_bits(samples.values, bits=samples.bits)
        return ~seen if samples.is_inverted else seen
    return samples.shown_values()


def check_dtype(dtype: np.dtype[Any], name: str) -> None:
    """InvalidInput for values that are no brightness."""
    if dtype.kind in _KINDS:
        return
    fix = "take numpy.abs of it" if dtype.kind == "c" else "convert it to integers or floats"
    what = {"c": "complex numbers", "O": "Python objects", "S": "texts", "U": "texts", "T": "texts", "V": "records"}
    raise InvalidInput(f"{name} has {what.get(dtype.kind, f'values of the type {dtype}')} and no brightness: {fix}")


class ArraySource:
    """Anything with ``shape``, ``dtype`` and an index: numpy, Zarr, Dask, HDF5. Frames in one chunk are read together.

    Names of dimensions are taken from ``dims``, as xarray has them.
    """

    may_be_rgb = True

    def __init__(
        self,
        array: Any,
        name: str,
        *,
        names: Sequence[str | None] | None = None,
        form: VolumeForm | None = None,
        paths: Sequence[Path] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """
        Args:
            names: of the dimensions, as another program writes them.
        """
        try:
            self.dtype = np.dtype(array.dtype)
        except TypeError:  # of another library's own kind
            array = np.asarray(array)
            self.dtype = array.dtype
        self.name = name
        self._array = array
        check_dtype(self.dtype, name)
        shape = tuple(int(side) for side in array.shape)
        if names is None:
            given = getattr(array, "dims", None)
            names = given if isinstance(given, tuple) and len(given) == len(shape) else [None] * len(shape)
        self.dimensions = tuple(
            Dimension(dimension_name(str(each) if each else None), size)
            for each, size in zip(names, shape, strict=True)
        )
        self.form = form or VolumeForm()
        self.paths, self.notes, self.notices = list(paths), list(notes), list[str]()
        self._chunks = _chunk_lengths(array, shape)
        self._blocks: OrderedDict[tuple[int, int], Plane] = OrderedDict()
        self._lock = threading.Lock()

    def plane(self, selection: Selection, index: int) -> Plane:
        if selection.frames is None:
            only: Plane = self._upright(selection, self._read(selection, slice(0, 1), "frame 0"))[0]
            return only
        first, last = self._block_of(selection, index)
        with self._lock:
            block = self._blocks.get((first, last))
            if block is None:
                block = self._upright(selection, self._read(selection, slice(first, last), f"frame {index}"))
                self._blocks[first, last] = block
                while len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end((first, last))
        plane: Plane = block[index - first]
        return plane

    def sample(self, selection: Selection) -> Iterator[Plane]:
        """Whole chunks, so that a Zarr array of any size costs a few of them."""
        chunks = [self._chunk(selection, place) for place in range(len(self.dimensions))]
        counts = [
            1 if place in selection.fixed else -(-each.size // chunks[place])
            for place, each in enumerate(self.dimensions)
        ]
        total = math.prod(counts)
        wanted = parts_to_sample(math.prod(chunks))
        if total <= wanted or max(counts) == total:
            numbers = spread(total, wanted)
        else:  # in two dimensions and more even steps could hit the same columns again and again
            numbers = sorted(Random(_SEED).sample(range(total), wanted))
        for number in numbers:
            index: list[Any] = []
            for place, at in enumerate(np.unravel_index(number, counts)):
                start = int(at) * chunks[place]
                index.append(selection.fixed.get(place, slice(start, start + chunks[place])))
            yield thinned(self._values(tuple(index), f"a part of {self.name}"), wanted)

    def stem(self, index: int) -> str | None:
        return None

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()

    def _chunk(self, selection: Selection, place: int) -> int:
        """The length of chunks along a dimension; a frame is one where the array has none."""
        if self._chunks is not None:
            return self._chunks[place]
        return 1 if place == selection.frames else self.dimensions[place].size

    def _block_of(self, selection: Selection, index: int) -> tuple[int, int]:
        """The frames that are read with this one: of its chunk, as many as have room."""
        assert selection.frames is not None
        chunk = self._chunk(selection, selection.frames)
        width, height = selection.size
        room = max(1, _BLOCK_BYTES // max(1, width * height * selection.samples * self.dtype.itemsize))
        start, within = index // chunk * chunk, index % chunk
        step = min(chunk, room)
        first = start + within // step * step
        return first, min(first + step, start + chunk, selection.length)

    def _read(self, selection: Selection, frames: slice, where: str) -> Plane:
        index: list[Any] = [selection.fixed.get(place, slice(None)) for place in range(len(self.dimensions))]
        if selection.frames is not None:
            index[selection.frames] = frames
        return self._values(tuple(index), f"{where} of {self.name}")

    def _values(self, index: tuple[Any, ...], where: str) -> Plane:
        try:
            values: Plane = guarded(lambda: np.asarray(self._array[index]))
        except InvalidInput as error:
            raise InvalidInput(f"{where} cannot be read: {reason_of(error)}") from None
        return values

    def _upright(self, selection: Selection, values: Plane) -> Plane:
        """What was read, without the dimensions that are held -> [N,H,W] or [N,H,W,C]."""
        left = [place for place in range(len(self.dimensions)) if place not in selection.fixed]
        order = [selection.frames, selection.y, selection.x, selection.colours]
        turned = values.transpose([left.index(place) for place in order if place is not None])
        return turned[None] if selection.frames is None else turned


def reason_of(error: InvalidInput) -> str:
    """Without the words that are meant for image files."""
    return str(error).removeprefix("the image is damaged or cut short (").removesuffix("): send it again")


def _chunk_lengths(array: Any, shape: Sequence[int]) -> list[int] | None:
    """Along each dimension; None if the array has no chunks."""
    chunks = getattr(array, "chunks", None)
    if not isinstance(chunks, tuple) or len(chunks) != len(shape):
        return None
    lengths = [max(each) if isinstance(each, tuple) else each for each in chunks]  # Dask has them all
    return [max(1, min(int(length), side)) for length, side in zip(lengths, shape, strict=True)]
