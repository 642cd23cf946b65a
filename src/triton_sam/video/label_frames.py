"""Label images: one PNG a frame, whose pixels have the numbers of the objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from triton_sam.core.label_overlay import label_colours
from triton_sam.errors import InvalidInput
from triton_sam.files import whole_file
from triton_sam.video.found import VideoFrame

_MOST = 2**16 - 1


class LabelFolder:
    """Writes ``000012.png``, or the name of the frame's file: pixel value k is object k, 0 is none.

    8 bits with a palette of colours if all objects have numbers up to 255, else 16 bits.
    """

    def __init__(self, folder: Path, size: tuple[int, int], objects: list[int]) -> None:
        """
        Args:
            size: (width, height) of the frames.
            objects: all numbers that occur.
        """
        self.check(objects)
        self._folder, self._size = folder, size
        self._is_small = max(objects, default=0) < 2**8
        self._palette = label_colours(255).tobytes()
        self._values = {name: name for name in objects}
        self._is_new = not folder.exists()
        self._written: list[Path] = []
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"the folder {folder} cannot be made: {error.strerror or error}") from None

    @contextlib.contextmanager
    def complete_or_empty(self) -> Iterator[None]:
        """If the block fails, takes away what was written in it, because some of the images would look like all."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                for path in self._written:
                    path.unlink(missing_ok=True)
                if self._is_new:
                    self._folder.rmdir()
            raise

    @staticmethod
    def check(objects: list[int]) -> None:
        """InvalidInput for objects whose numbers label images cannot hold."""
        wrong = [name for name in objects if not 1 <= name <= _MOST]
        if wrong:
            raise InvalidInput(f"object {wrong[0]} has no place in label images: number objects from 1 to {_MOST:,}")

    def write(self, index: int, frame: VideoFrame | None, stem: str | None = None) -> Path:
        """Writes one frame's labels; zeros if nothing is known of it."""
        width, height = self._size
        labels = np.zeros((height, width), np.uint8) if frame is None else frame.labels(self._values)
        picture = Image.fromarray(labels.astype(np.uint8 if self._is_small else np.uint16))
        if self._is_small:
            picture.putpalette(self._palette)
        about = PngImagePlugin.PngInfo()
        # By this text the web page knows a dropped file as a label image, whatever its name.
        about.add_text("labels", "{}")
        path = self._folder / f"{f'{index:06d}' if stem is None else stem}.png"
        self._written.append(path)
        with whole_file(path) as file:
            picture.save(file, "PNG", compress_level=1, pnginfo=about)
        return path
