"""Types of label volumes."""

from __future__ import annotations

from collections.abc import Callable

from triton_sam.core.everything.labels import Labels

#: (frames, height, width)
Shape = tuple[int, int, int]
#: Writes the labels [H,W] of the next frame.
AddLabels = Callable[[Labels], None]
