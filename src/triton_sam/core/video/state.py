"""What a session needs to go on elsewhere, as arrays in host memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class FrameState:
    """What is remembered of one object in one frame.

    Attributes:
        conditions: whether it is a conditioning frame.
        pending: whether it waits for the next tracked frame to become one.
        features: [C,h,w] bits of bfloat16; None if only the pointer is needed.
        pointer: [256] float32.
        logits: [h,w] float16 low-resolution mask; only of frames with prompts.
        appearance, score: as in :class:`~triton_sam.core.video.bank.Remembered`.
    """

    frame: int
    conditions: bool
    pending: bool
    features: npt.NDArray[np.uint16] | None
    pointer: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float16] | None
    appearance: float
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class ObjectState:
    """One object.

    Attributes:
        name: its number.
        tracked: (first frame, last frame, whether backward) of each range that was tracked.
    """

    name: int
    frames: tuple[FrameState, ...]
    tracked: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class SessionState:
    """A session.

    Attributes:
        model_id: of the catalogue: memories of one model mean nothing to another.
        length: number of frames of the video; None if it has no end.
        size: (width, height) of a frame in pixels; None before the first one.
        newest: the frame that was tracked last; None if none was.
    """

    model_id: str
    length: int | None
    size: tuple[int, int] | None
    newest: int | None
    objects: tuple[ObjectState, ...] = field(default_factory=tuple)
