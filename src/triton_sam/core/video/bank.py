"""The memory of one object: what was remembered of it in which frame, and which of that a frame attends to.

The definition is Meta's video predictor. A frame attends to the conditioning frames (those with a prompt), to the
memories of the 6 frames before it, and to the object pointers of the 15 frames before it; where the video is tracked
backward, "before" means after. What none of these can reach is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.video.frame_ranges import FrameRanges
from triton_sam.core.video.memory_traits import MemoryTraits


@dataclass(eq=False, slots=True)
class Remembered:
    """One object in one frame.

    Attributes:
        features: the engine's memory of the object and its surroundings; None once it was dropped.
        pointer: the engine's object pointer.
        logits: [h,w] float32, the low-resolution mask, for corrections and to answer for a conditioning frame again;
            None once it was dropped.
        appearance: the object's score of being there; above 0 it is.
        score: predicted IoU.
    """

    features: Any
    pointer: Any
    logits: npt.NDArray[np.float32] | None
    appearance: float
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What an object attends to in one frame.

    Attributes:
        memories: (features, age) of each frame; age is 0 for a conditioning frame, else how many frames ago, 1 to 6.
        pointers: (pointer, distance in frames), of frames in the direction that the video was tracked from.
        span: the distance that counts as 1 in a pointer's position.
    """

    memories: tuple[tuple[Any, int], ...]
    pointers: tuple[tuple[Any, int], ...]
    span: int


class ObjectMemory:
    """What is remembered of one object."""

    def __init__(self, traits: MemoryTraits) -> None:
        self._traits = traits
        self.conditioning: dict[int, Remembered] = {}
        """By frame, in the order in which they were prompted first."""
        self.others: dict[int, Remembered] = {}
        self.tracked = FrameRanges()

    def find(self, frame: int) -> Remembered | None:
        """What is still known of a frame."""
        return self.conditioning.get(frame) or self.others.get(frame)

    def put(self, frame: int, entry: Remembered, *, conditions: bool) -> None:
        """Remembers a frame, in place of what was known of it."""
        if conditions:
            self.others.pop(frame, None)
            self.conditioning[frame] = entry
        else:
            self.others[frame] = entry

    def demote(self, frame: int) -> None:
        """Makes a conditioning frame an ordinary one, because its prompts were taken away."""
        entry = self.conditioning.pop(frame, None)
        if entry is not None:
            self.others[frame] = entry
            self.tracked.discard(frame)

    def clear_around(self, frame: int) -> None:
        """Forgets ordinary frames near one that was corrected: they show what the correction was against."""
        reach = self._traits.memories
        self.others = {other: entry for other, entry in self.others.items() if abs(other - frame) > reach}

    def attended(self, frame: int, *, reverse: bool, length: int | None) -> Attended:
        """What the object attends to in a frame. There must be a conditioning frame.

        Args:
            length: number of frames of the video; None if it has no end.
        """
        traits = self._traits
        chosen, unchosen = self._closest(frame)
        memories = [(entry.features, 0) for entry in chosen.values()]
        step = 1 if reverse else -1
        for age in range(traits.memories - 1, 0, -1):
            entry = self.others.get(frame + step * age) or unchosen.get(frame + step * age)
            if entry is not None and entry.features is not None:
                memories.append((entry.features, age))
        most = traits.pointers if length is None else min(length, traits.pointers)
        pointers = [
            (entry.pointer, step * (other - frame))
            for other, entry in chosen.items()
            if (other >= frame if reverse else other <= frame)
        ]
        for age in range(1, most):
            other = frame + step * age
            if other < 0 or (length is not None and other >= length):
                break
            entry = self.others.get(other) or unchosen.get(other)
            if entry is not None:
                pointers.append((entry.pointer, age))
        return Attended(tuple(memories), tuple(pointers), max(1, most - 1))

    def forgotten(self, frame: int, *, reverse: bool) -> list[int]:
        """Frames that this frame would attend to if their memories had not been dropped."""
        step = 1 if reverse else -1
        reached = (frame + step * age for age in range(1, self._traits.memories))
        return [
            other
            for other in reached
            if self.tracked.get(other) is not None
            and other not in self.conditioning
            and ((entry := self.others.get(other)) is None or entry.features is None)
        ]

    def prune(self, frame: int, *, history: int = 0) -> None:
        """Drops what no frame can reach that comes after this one, or after or before a conditioning frame.

        Args:
            frame: the one that was tracked last.
            history: memories of so many frames around it are kept in any case, for corrections of earlier frames.
        """
        kept: dict[int, Remembered] = {}
        for other, entry in self.others.items():
            if not self.reaches(other, frame, self._traits.memories - 1, history):
                entry.features = entry.logits = None
            if entry.features is not None or self.reaches(other, frame, self._traits.pointers - 1):
                kept[other] = entry
        self.others = kept

    def reaches(self, other: int, frame: int, most: int, history: int = 0) -> bool:
        """Whether a frame is at most ``most`` frames away from the one tracked last, or from a conditioning frame.

        Args:
            history: counts instead of ``most`` for the one tracked last, if it is more.
        """
        near = abs(other - frame) <= max(most, history)
        return near or any(abs(other - conditioning) <= most for conditioning in self.conditioning)

    def drop_conditioning(self, most: int) -> list[int]:
        """Drops conditioning frames beyond ``most``: those prompted earliest, but never the first. Returns them."""
        dropped = list(self.conditioning)[1 : 1 + max(0, len(self.conditioning) - most)]
        for frame in dropped:
            del self.conditioning[frame]
        return dropped

    def _closest(self, frame: int) -> tuple[Mapping[int, Remembered], Mapping[int, Remembered]]:
        """Conditioning frames to attend to, and the others: the nearest on each side, then the nearest of the rest."""
        known, most = self.conditioning, self._traits.most_conditioning
        if most is None or len(known) <= most:
            return known, {}
        before = max((other for other in known if other < frame), default=None)
        after = min((other for other in known if other >= frame), default=None)
        order = [other for other in (before, after) if other is not None]
        rest = sorted((other for other in known if other not in order), key=lambda other: abs(other - frame))
        order += rest[: most - len(order)]
        return (
            {other: known[other] for other in order},
            {other: entry for other, entry in known.items() if other not in order},
        )
