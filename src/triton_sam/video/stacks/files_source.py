"""A folder of images of more than 8 bits as a stack, so that one contrast holds for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from triton_sam.core.image_planes import ImagePlanes
from triton_sam.core.picture_samples import Samples
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.video.lists import ListClip
from triton_sam.video.stacks.contrast import parts_to_sample, spread, thinned
from triton_sam.video.stacks.dimensions import Dimension, Selection
from triton_sam.video.stacks.scale import VolumeForm
from triton_sam.video.stacks.sources import Plane, shown_values

_NO_LIMIT = 2**62  # the clip has looked at them


def is_deep(clip: ListClip) -> bool:
    """Whether the first image has grey or colours of more than 8 bits. What cannot be read is not."""
    try:
        values = _samples(clip, 0).values
    except TritonSamError:
        return False
    return values.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_))


class FilesSource:
    """Reads a file at a time; of a file with several pages, the first one."""

    may_be_rgb = False

    def __init__(self, clip: ListClip, axis: str) -> None:
        """
        Args:
            axis: what the files follow each other along.
        """
        assert clip.length is not None
        self._clip = clip
        self.name, self.paths, self.notices = clip.name, clip.paths, clip.notices
        self.notes: list[str] = []
        first = _samples(clip, 0)
        self._has_colours = first.colours == 3
        values = shown_values(first)
        self.dtype, self._kind = values.dtype, (first.values.dtype, first.channels, first.colours)
        width, height = clip.size
        self.dimensions = (
            Dimension(axis, clip.length),
            Dimension("y", height),
            Dimension("x", width),
            *([Dimension("s", 3)] if self._has_colours else []),
        )
        self.form = VolumeForm()

    def plane(self, selection: Selection, index: int) -> Plane:
        samples = _samples(self._clip, index)
        if (samples.values.dtype, samples.channels, samples.colours) != self._kind:
            raise InvalidInput(
                f"frame {index} of {self.name} has {samples.channels} channel(s) of {samples.values.dtype} and the "
                f"first frame {self._kind[1]} of {self._kind[0]}: all frames must be alike, so write them in one kind"
            )
        values = shown_values(samples)
        if selection.colours is not None:
            return np.moveaxis(values, 0, 2)
        plane: Plane = values[selection.fixed[len(self.dimensions) - 1] if self._has_colours else 0]
        return plane

    def sample(self, selection: Selection) -> Iterator[Plane]:
        width, height = selection.size
        wanted = parts_to_sample(width * height)
        for index in spread(selection.length, wanted):
            yield thinned(self.plane(selection, index), min(wanted, selection.length))

    def stem(self, index: int) -> str | None:
        return self._clip.stem(index)

    def close(self) -> None:
        self._clip.close()


def _samples(clip: ListClip, index: int) -> Samples:
    """Of the first page of a frame's file; an error names the frame."""
    frame = clip.frame(index)
    try:
        return ImagePlanes(frame.data, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).page(0)
    except TritonSamError as error:
        raise type(error)(f"frame {index} of {clip.name} cannot be used: {error}") from None
