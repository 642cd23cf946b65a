"""What a user says about a stack: the dimension of its frames, where the others are held, and the contrast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_sam.errors import InvalidInput

#: Dimensions that frames can run along.
FRAME_AXES = ("t", "z")


@dataclass(frozen=True, slots=True)
class StackChoice:
    """Everything that is left out is as the file says.

    Attributes:
        axis: ``t`` or ``z``: what the frames run along.
        at: dimension -> the index at which it is held: ``{"c": 1, "t": 0}``.
        contrast: (low, high): values that become black and white.
        axes: a letter for each dimension, such as ``TZCYX``, where the file does not name them, or wrongly.
    """

    axis: str | None = None
    at: Mapping[str, int] = field(default_factory=dict)
    contrast: tuple[float, float] | None = None
    axes: str | None = None

    @staticmethod
    def of(axis: Any = None, at: Any = None, contrast: Any = None, axes: Any = None) -> StackChoice:
        """Checked; InvalidInput says what is wrong."""
        if axis is not None and axis not in FRAME_AXES:
            raise InvalidInput(f"axis is t (frames of a video) or z (slices of a volume), not {axis!r}")
        return StackChoice(axis, _places(at or {}), None if contrast is None else _window(contrast), _letters(axes))

    @property
    def is_for_stacks_only(self) -> bool:
        """Whether it says more than the direction."""
        return bool(self.at) or self.contrast is not None or self.axes is not None


def _places(at: Any) -> dict[str, int]:
    if not isinstance(at, Mapping):
        raise InvalidInput(f"at is a mapping from dimensions to indices, such as {{'c': 1}}, not {type(at).__name__}")
    found = {}
    for name, index in at.items():
        if isinstance(index, bool) or not hasattr(index, "__index__") or index < 0:
            raise InvalidInput(f"the dimension {name} is held at a whole number from 0 on, not at {index!r}")
        found[str(name).lower()] = int(index)
    return found


def _window(contrast: Any) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in contrast)
    except (TypeError, ValueError):
        raise InvalidInput(f"contrast is (low, high), two numbers, not {contrast!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"contrast is (low, high) with low below high, not ({low:g}, {high:g})")
    return low, high


def _letters(axes: Any) -> str | None:
    if axes is None:
        return None
    letters = str(axes).lower()
    if not letters.isalpha() or len(set(letters)) != len(letters) or not {"y", "x"} <= set(letters):
        raise InvalidInput(f"axes has a letter for each dimension, Y and X among them, such as TZYX, not {axes!r}")
    return letters
