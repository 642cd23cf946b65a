"""A clip: frames in order, each as the image file that is sent."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.core.images import EncodedImage
from triton_sam.core.untrusted import check_size
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.settings import get_settings
from triton_sam.video.stacks.contrast import Contrast
from triton_sam.video.stacks.scale import VolumeForm

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClipLimits:
    """What a frame may have; checked before its pixels are decoded.

    Attributes:
        formats, decoders: names that FFmpeg may use for files that nobody trusts, separated by commas; empty: all.
    """

    pixels: int
    bytes: int
    formats: str = ""
    decoders: str = ""

    @staticmethod
    def of_settings() -> ClipLimits:
        """Those of this machine, which a server has too unless it is set up otherwise."""
        settings = get_settings()
        return ClipLimits(settings.max_image_pixels, settings.max_image_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class ClipFrame:
    """One frame.

    Attributes:
        index: from 0 on, in the order in which frames are shown.
        data: an image file.
        seconds: when it is shown, from the first frame on; None if the clip has no times.
    """

    index: int
    data: bytes
    seconds: float | None = None


class Clip(ABC):
    """Frames of one size, in order. Threads may share a clip."""

    #: For messages.
    name: str
    #: (width, height) as a person sees it.
    size: tuple[int, int]
    #: Number of frames; None if only the end will tell. A clip that says None has more than 16.
    length: int | None = None
    #: About how many frames there are, for a progress bar.
    expected: int | None = None
    #: Frames a second; None if the clip has no times.
    rate: float | None = None
    #: Whether frames come only once, so that earlier ones are kept for a while only.
    is_live = False
    #: What frames run along: ``t``, times, or ``z``, slices of a volume, which are tracked both ways.
    axis = "t"

    @abstractmethod
    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        """Frames from ``first`` to ``last`` (None: to the end); fewer if the clip ends before.

        Raises:
            InvalidInput: names a frame that cannot be read, or has another size.
        """

    def frame(self, index: int) -> ClipFrame:
        """One frame; InvalidInput if there is none with this index."""
        if index < 0:
            raise InvalidInput(f"frame {index} does not exist: frames of a video count from 0")
        for found in self.frames(index, index):
            return found
        ends = "" if self.length is None else f": it has {self.length} frame{'s' * (self.length != 1)}, counted from 0"
        raise InvalidInput(f"there is no frame {index} in {self.name}{ends}")

    def count(self) -> int:
        """Number of frames; a clip that does not know it is read to its end."""
        if self.length is None:
            for _ in self.frames():
                pass
        assert self.length is not None
        return self.length

    def stem(self, index: int) -> str | None:
        """The name of a frame's file without its suffix; None if it has no file."""
        return None

    @property
    def paths(self) -> list[Path]:
        """The files that it is read from."""
        return []

    @property
    def notices(self) -> list[str]:
        """What is wrong with the clip, in sentences."""
        return []

    @property
    def notes(self) -> list[str]:
        """How the clip is understood, where its file leaves that open, in sentences."""
        return []

    @property
    def contrast(self) -> Contrast | None:
        """The values that are shown as black and white, where the frames have more than 8 bits."""
        return None

    @property
    def meaning(self) -> dict[str, Any]:
        """What of the files is meant, as JSON; empty if all of it is."""
        return {}

    @property
    def form(self) -> VolumeForm:
        """What label volumes take over."""
        return VolumeForm(axis=self.axis)

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Lets go of files; frames cannot be read any more."""


def upright_size(data: bytes, limits: ClipLimits, where: str) -> tuple[int, int]:
    """(width, height) of an image file as a person sees it, from its header; an error names the frame.

    Args:
        where: ``frame 3 (name.png)``.
    """
    try:
        check_size(len(data), limits.bytes)
        return EncodedImage(data, max_bytes=limits.bytes, max_pixels=limits.pixels).size
    except TritonSamError as error:
        raise type(error)(f"{where} cannot be used: {error}") from None


def check_same_size(where: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    """InvalidInput for a frame of another size than the first one."""
    if size != expected:
        raise InvalidInput(
            f"{where} has {size[0]} x {size[1]} pixels and the first frame {expected[0]} x {expected[1]}: "
            "all frames of a video must have one size, so cut it there"
        )
