"""Image files of several pictures that Pillow reads and FFmpeg does not: animated WebP."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.untrusted import check_pixels, guarded
from triton_sam.errors import TritonSamError
from triton_sam.video.arrays import ArrayClip
from triton_sam.video.clip import ClipLimits, check_same_size

_RIFF, _WEBP = b"RIFF", b"WEBP"
#: Modes whose values are kept; all others become RGB.
_PLAIN = {"L", "I;16", "I;16B", "I", "F", "RGB", "RGBA"}


def pages_clip(path: Path, limits: ClipLimits | None = None) -> PagesClip | None:
    """The pictures of a WebP file as a clip; None for every other file."""
    with path.open("rb") as file:
        head = file.read(12)
    if (head[:4], head[8:]) == (_RIFF, _WEBP):
        return PagesClip(path, limits or ClipLimits.of_settings())
    return None


class PagesClip(ArrayClip):
    """A file of several pictures."""

    def __init__(self, path: Path, limits: ClipLimits) -> None:
        super().__init__(_Pages(path, limits), limits)
        self.name = str(path)
        self._path = path

    @property
    def paths(self) -> list[Path]:
        return [self._path]


class _Pages:
    """The pictures as an array [T,H,W] or [T,H,W,C], decoded one by one. Threads may share it."""

    def __init__(self, path: Path, limits: ClipLimits) -> None:
        self._path, self._limits = path, limits
        self._lock = threading.Lock()
        try:
            self._file: Image.Image = guarded(lambda: Image.open(path))
            weakref.finalize(self, self._file.close)
            check_pixels(*self._file.size, limits.pixels)
            count = guarded(lambda: int(getattr(self._file, "n_frames", 1)))
        except TritonSamError as error:
            raise type(error)(f"{path} cannot be used: {error}") from None
        self._size = self._file.size
        first = self[0]
        self.shape = (count, *first.shape)
        self.dtype = first.dtype

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """[H,W] or [H,W,C]."""
        where = f"frame {index} of {self._path}"
        with self._lock:
            try:
                guarded(lambda: self._file.seek(index))
                check_same_size(where, self._file.size, self._size)
                return guarded(lambda: np.asarray(_plain(self._file)))
            except TritonSamError as error:
                text = str(error)
                raise type(error)(text if text.startswith(where) else f"{where} cannot be used: {text}") from None


def _plain(picture: Image.Image) -> Image.Image:
    if picture.mode in _PLAIN:
        return picture
    return picture.convert("RGBA" if picture.has_transparency_data else "RGB")
