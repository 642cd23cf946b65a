"""A stack as a clip: planes with one contrast for all of them, sent as PNG."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.core.images import file_bytes
from triton_sam.core.untrusted import check_pixels
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits
from triton_sam.video.stacks.choice import StackChoice
from triton_sam.video.stacks.contrast import Contrast, contrast_of, given_contrast
from triton_sam.video.stacks.dimensions import select
from triton_sam.video.stacks.scale import VolumeForm
from triton_sam.video.stacks.sources import Plane, StackSource


class StackClip(Clip):
    """Frames along one dimension of a stack. Values of 8 bits are sent as they are, unless a contrast is given."""

    def __init__(self, source: StackSource, choice: StackChoice, limits: ClipLimits | None = None) -> None:
        limits = limits or ClipLimits.of_settings()
        self.name = source.name
        self._source, self._choice = source, choice
        try:
            self._selection = select(source.dimensions, choice, source.name, may_be_rgb=source.may_be_rgb)
            self.size = self._selection.size
            check_pixels(*self.size, limits.pixels)
        except TritonSamError as error:
            source.close()
            text = str(error)
            raise type(error)(text if source.name in text else f"{source.name} cannot be used: {text}") from None
        self.axis = self._selection.axis
        self.length = self.expected = self._selection.length
        self._contrast: Contrast | None = None
        self._lock = threading.Lock()

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        end = self._selection.length if last is None else min(last + 1, self._selection.length)
        for index in range(max(0, first), end):
            plane = self._source.plane(self._selection, index)
            try:
                yield ClipFrame(index, file_bytes(self._shown(plane)))
            except InvalidInput as error:
                raise InvalidInput(f"frame {index} of {self.name} cannot be used: {error}") from None

    @property
    def contrast(self) -> Contrast | None:
        """From a sample that is read when it is first needed; None for 8 bits as they are."""
        with self._lock:
            if self._contrast is None and self._is_scaled:
                self._contrast = self._found_contrast()
            return self._contrast

    @property
    def form(self) -> VolumeForm:
        return replace(self._source.form, axis=self.axis)

    @property
    def meaning(self) -> dict[str, Any]:
        chosen, contrast = self._selection, self.contrast
        dimensions = [[each.name, each.size] for each in chosen.dimensions]
        held = {str(place): index for place, index in sorted(chosen.fixed.items())}
        window = None if contrast is None else list(contrast.window)
        return {"axis": self.axis, "dimensions": dimensions, "at": held, "contrast": window}

    @property
    def paths(self) -> list[Path]:
        return list(self._source.paths)

    def stem(self, index: int) -> str | None:
        return self._source.stem(index)

    @property
    def notices(self) -> list[str]:
        return list(self._source.notices)

    @property
    def notes(self) -> list[str]:
        return [*self._source.notes, *self._selection.notes]

    def close(self) -> None:
        self._source.close()

    @property
    def _is_scaled(self) -> bool:
        return self._choice.contrast is not None or self._source.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_))

    def _found_contrast(self) -> Contrast:
        if self._choice.contrast is not None:
            return given_contrast(self._choice.contrast)
        return contrast_of(self._source.sample(self._selection), self._source.dtype)

    def _shown(self, plane: Plane) -> Plane:
        """[H,W] or [H,W,C] of any values -> what is sent, uint8."""
        contrast = self.contrast
        if contrast is None:
            return plane
        return contrast.applied(plane[..., :3] if plane.ndim == 3 and plane.shape[2] == 4 else plane)
