"""Decoded samples with what they mean, and the RGB picture that a person or a model sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.deep_pixels import Bytes, Window, depth, eight_bits, value_range, windowed
from triton_sam.errors import InvalidInput


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples of one image, upright."""

    values: npt.NDArray[Any]
    """[C,H,W]"""
    colours: int | None = None
    """1: grey, 3: RGB, and what follows is transparency or ignored; None: channels of unknown meaning."""
    alpha: str | None = None
    """"associated" if the colours were multiplied by the transparency, "straight" if not; None: none."""
    is_inverted: bool = False
    """Whether the smallest value is white."""
    bits: int | None = None
    """Of each sample, where fewer than its dtype has."""

    @property
    def channels(self) -> int:
        return int(self.values.shape[0])

    def shown_values(self) -> npt.NDArray[Any]:
        """[C,H,W] with the smallest value as black, where the samples are unsigned."""
        if not self.is_inverted or self.values.dtype.kind != "u":
            return self.values
        bits = self.values.dtype.itemsize * 8 if self.bits is None else self.bits
        inverted: npt.NDArray[Any] = self.values.dtype.type(2**bits - 1) - self.values
        return inverted

    def rgb(self) -> Image.Image:
        """The picture, mode RGB, transparency on white."""
        if self.colours is None:
            raise InvalidInput(f"the image has {self.channels} channels that are not declared as colours: choose one")
        grey_or_rgb = self.values[: self.colours]
        seen = eight_bits(grey_or_rgb, bits=self.bits)
        if self.is_inverted:
            seen = ~seen
        if self.alpha is not None:
            seen = _on_white(seen, self._opacity(grey_or_rgb), associated=self.alpha == "associated")
        return _picture(seen)

    def channel(self, index: int, window: Window | None = None) -> Bytes:
        """[H,W] uint8 of one channel; a window's low is black and its high is white."""
        if not 0 <= index < self.channels:
            raise InvalidInput(
                f"the image has {self.channels} channel(s), and {index} is none of 0 to {self.channels - 1}"
            )
        values = self.values[index]
        seen = eight_bits(values, bits=self.bits) if window is None else windowed(values, window)
        return ~seen if self.is_inverted else seen

    def windowed_rgb(self, window: Window) -> Image.Image:
        """The picture with low as black and high as white in all its colours; transparency is ignored."""
        if self.colours is None:
            raise InvalidInput(f"the image has {self.channels} channels that are not declared as colours: choose one")
        seen = windowed(self.values[: self.colours], window)
        return _picture(~seen if self.is_inverted else seen)

    def _opacity(self, colours: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """[H,W] from 0 to 1. Where colours have 12 bits in 16, so has what is opaque."""
        values = self.values[self.colours]
        if values.dtype == np.uint8:
            white = 255.0 if self.bits is None or self.bits >= 8 else float(2**self.bits - 1)
            return values.astype(np.float32) / np.float32(white)
        low, high = value_range(values)
        if low < 0 or (values.dtype.kind == "f" and high > 1) or high >= 2**16:
            raise InvalidInput("the image's transparency is not between 0 and 1: write the image without it")
        if values.dtype.kind == "f":
            return values.astype(np.float32)
        brightest = value_range(colours)[1]
        return values.astype(np.float32) / np.float32(2 ** max(depth(high), depth(max(0, min(brightest, 65535)))) - 1)


def _on_white(seen: Bytes, opacity: npt.NDArray[np.float32], *, associated: bool) -> Bytes:
    """[C,H,W] and [H,W] -> [C,H,W]."""
    front = seen.astype(np.float32)
    if not associated:
        front *= opacity
    return np.clip(front + 255 * (1 - opacity) + 0.5, 0, 255.5).astype(np.uint8)


def _picture(seen: Bytes) -> Image.Image:
    if len(seen) == 1:
        return Image.fromarray(np.ascontiguousarray(seen[0])).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(seen, 0, 2)))
