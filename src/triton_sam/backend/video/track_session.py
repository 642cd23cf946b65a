"""One video session: which rows a request needs from the engine, and what becomes of their results.

The definition is Meta's video predictor; ADR 24 has what differs. Each object has a memory of its own. Prompts are
pending until the next frame is tracked, and only then count as memories. No Triton, no threads and no arithmetic here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.bank import ObjectMemory, Remembered
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.base import Decoded, Embedding
from triton_sam.engines.tracking import Remember, Tracked, TrackRow
from triton_sam.errors import InvalidInput, TooManyObjects


class ObjectMask(NamedTuple):
    """One object's mask in a frame.

    Attributes:
        name: the object's number.
        decoded: one mask, with all forms that the engine has made.
        appearance: above 0 if the object is there.
    """

    name: int
    decoded: Decoded
    appearance: float


@dataclass(frozen=True, slots=True, eq=False)
class FrameMasks:
    """The result of a request.

    Attributes:
        masks: of all objects that have one in the frame, in the order of the objects.
        forgotten: object -> frames that it would have attended to if their memories were still kept.
        dropped: object -> conditioning frames that were dropped because there were too many.
    """

    masks: tuple[ObjectMask, ...] = ()
    forgotten: dict[int, list[int]] = field(default_factory=dict)
    dropped: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A request that has begun.

    Attributes:
        rows: for the engine; may be empty.
        finish: takes one result for each row. Nothing that they say is remembered before.
    """

    rows: list[TrackRow]
    finish: Callable[[Sequence[Tracked]], FrameMasks]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may keep.

    Attributes:
        history: frames around the newest one whose memories are kept although no later frame needs them.
        conditioning: conditioning frames of one object.
        objects: number of objects.
    """

    history: int = 32
    conditioning: int = 16
    objects: int = 64


@dataclass(frozen=True, slots=True)
class Forms:
    """Full-size forms of masks that the engine makes, if it can: see :class:`~triton_sam.engines.base.Row`."""

    pixels: bool = False
    columns: bool = False


@dataclass(eq=False, slots=True)
class Pending:
    """A prompted frame that waits for the next tracked one."""

    entry: Remembered
    conditions: bool


class TrackSession:
    """The objects of one video. Steps come one after the other: one is finished before the next begins."""

    def __init__(self, traits: MemoryTraits, limits: Limits, length: int | None = None) -> None:
        """
        Args:
            length: number of frames of the video; None if it has no end.
        """
        self._traits = traits
        self._limits = limits
        self.length = length
        self.size: tuple[int, int] | None = None
        self.newest: int | None = None
        """The frame that was tracked last."""
        self._history = limits.history
        self.memories: dict[int, ObjectMemory] = {}
        """By object, in the order in which they came."""
        self.pending: dict[int, dict[int, Pending]] = {}
        """By object and frame."""

    @property
    def objects(self) -> list[int]:
        """The objects' numbers, in order."""
        return list(self.memories)

    # -- requests --------------------------------------------------------------------------------------------

    def check_frame(self, frame: int, size: tuple[int, int]) -> None:
        """Raises InvalidInput for a frame outside the video, or of another size than the frames before it."""
        if self.length is not None and frame >= self.length:
            raise InvalidInput(f"frame {frame} does not exist: the video has {self.length} frames, counted from 0")
        if self.size is not None and size != self.size:
            raise InvalidInput(
                f"frame {frame} has {size[0]} x {size[1]} pixels and the frames before it {self.size[0]} x "
                f"{self.size[1]}: start another session for frames of another size"
            )

    def prompt(
        self,
        frame: int,
        name: int,
        embedding: Embedding,
        prompt: ObjectPrompt | None = None,
        mask: npt.NDArray[np.bool_] | None = None,
        forms: Forms | None = None,
    ) -> Step:
        """A prompt for one object: all its points and its box in this frame, or its mask.

        Args:
            mask: [H,W] in original pixels.
        """
        self._check_embedding(frame, embedding)
        if name not in self.memories and len(self.memories) >= self._limits.objects:
            raise TooManyObjects(f"the session has {len(self.memories)} objects already: remove one first")
        memory = self.memories.get(name) or ObjectMemory(self._traits)
        reverse = memory.tracked.get(frame)
        is_first = reverse is None or not memory.conditioning
        conditions = is_first or self._traits.corrections_condition
        # A mask is the result itself, so that neither memories nor earlier masks matter.
        attended, previous = None, None
        if mask is None:
            previous = self._previous(name, frame, conditions)
            if not self._traits.learned_corrections:
                boxed = prompt is not None and prompt.box is not None
                is_first = is_first or boxed
                previous = None if previous is None or boxed or not (previous > 0).any() else previous
            attended = None if is_first else memory.attended(frame, reverse=bool(reverse), length=self.length)
        forms = forms or Forms()
        row = TrackRow(embedding, attended, prompt, previous, mask, Remember.HARD, forms.pixels, forms.columns)

        def finish(results: Sequence[Tracked]) -> FrameMasks:
            (tracked,) = results
            self.size = embedding.frame.width, embedding.frame.height
            self.memories.setdefault(name, memory)
            self.pending.setdefault(name, {})[frame] = Pending(_remembered(tracked), conditions)
            forgotten = {} if attended is None else _some(name, memory.forgotten(frame, reverse=bool(reverse)))
            return FrameMasks(self._masks(frame, {name: tracked}), forgotten)

        return Step([row], finish)

    def track(self, frame: int, embedding: Embedding, *, reverse: bool = False, forms: Forms | None = None) -> Step:
        """Tracks all objects in a frame. Pending prompts become memories first."""
        self._check_embedding(frame, embedding)
        if not self.memories:
            raise InvalidInput("there is no object to track: prompt one first")
        for name, memory in self.memories.items():
            if not memory.conditioning and not any(one.conditions for one in self.pending.get(name, {}).values()):
                raise InvalidInput(f"object {name} has no prompt left: prompt it again, or remove it")
        dropped = self._commit()
        forms = forms or Forms()
        rows, asked = [], []
        forgotten: dict[int, list[int]] = {}
        for name, memory in self.memories.items():
            if frame in memory.conditioning:
                continue
            attended = memory.attended(frame, reverse=reverse, length=self.length)
            forgotten |= _some(name, memory.forgotten(frame, reverse=reverse))
            rows.append(TrackRow(embedding, attended, pixels=forms.pixels, columns=forms.columns))
            asked.append(name)

        def finish(results: Sequence[Tracked]) -> FrameMasks:
            found = dict(zip(asked, results, strict=True))
            self.size, self.newest = (embedding.frame.width, embedding.frame.height), frame
            for name, memory in self.memories.items():
                if name in found:
                    memory.put(frame, _remembered(found[name]), conditions=False)
                elif self._clears:
                    memory.clear_around(frame)
                memory.tracked.set(frame, reverse=reverse)
                memory.prune(frame, history=self._history)
            return FrameMasks(self._masks(frame, found), forgotten, dropped)

        return Step(rows, finish)

    def clear(self, frame: int, name: int) -> FrameMasks:
        """Takes an object's prompts in a frame away; what was found there stays as an ordinary memory."""
        memory = self._require(name)
        self.pending.get(name, {}).pop(frame, None)
        memory.demote(frame)
        return FrameMasks(self._masks(frame, {}))

    def remove(self, name: int) -> None:
        """Forgets an object."""
        self._require(name)
        del self.memories[name]
        self.pending.pop(name, None)

    def reset(self) -> None:
        """Forgets all objects."""
        self.memories.clear()
        self.pending.clear()
        self.newest = None
        self._history = self._limits.history

    # -- memory ----------------------------------------------------------------------------------------------

    def bytes(self, memory_bytes: int) -> int:
        """What the session keeps.

        Args:
            memory_bytes: of one memory of the engine.
        """
        return sum(
            memory_bytes * (entry.features is not None)
            + (0 if entry.logits is None else entry.logits.nbytes)
            + _POINTER_BYTES
            for entry in self._entries()
        )

    def shrink(self, most: int, memory_bytes: int) -> bool:
        """Keeps less history until the session fits into ``most`` bytes. Returns whether it does."""
        while self.bytes(memory_bytes) > most and self._history > 0:
            self._history //= 2
            for memory in self.memories.values():
                if self.newest is not None:
                    memory.prune(self.newest, history=self._history)
        return self.bytes(memory_bytes) <= most

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def _clears(self) -> bool:
        """Whether a correction clears memories near it; with several objects it would clear those of others too."""
        return self._traits.clears_around_prompts and len(self.memories) == 1

    def _check_embedding(self, frame: int, embedding: Embedding) -> None:
        self.check_frame(frame, (embedding.frame.width, embedding.frame.height))

    def _require(self, name: int) -> ObjectMemory:
        memory = self.memories.get(name)
        if memory is None:
            known = ", ".join(map(str, self.memories)) or "none"
            raise InvalidInput(f"there is no object {name} in this session: known are {known}")
        return memory

    def _previous(self, name: int, frame: int, conditions: bool) -> npt.NDArray[np.float32] | None:
        """The logits that a prompt corrects: those of the prompt before it, or else what was found in the frame."""
        pending = self.pending.get(name, {}).get(frame)
        if pending is not None and pending.conditions == conditions:
            return pending.entry.logits
        memory = self.memories.get(name)
        known = None if memory is None else memory.find(frame)
        return None if known is None else known.logits

    def _commit(self) -> dict[int, list[int]]:
        """Makes pending prompts memories; returns the conditioning frames that were dropped of each object."""
        dropped: dict[int, list[int]] = {}
        for name, waiting in self.pending.items():
            memory = self.memories[name]
            for frame, pending in waiting.items():
                memory.put(frame, pending.entry, conditions=pending.conditions)
                if self._clears:
                    memory.clear_around(frame)
            dropped |= _some(name, memory.drop_conditioning(self._limits.conditioning))
        self.pending.clear()
        return dropped

    def _masks(self, frame: int, found: dict[int, Tracked]) -> tuple[ObjectMask, ...]:
        """The masks of a frame: those just found, and those that are known of the other objects."""
        masks = []
        for name, memory in self.memories.items():
            if name in found:
                masks.append(ObjectMask(name, found[name].decoded, found[name].appearance))
                continue
            pending = self.pending.get(name, {}).get(frame)
            entry = memory.find(frame) if pending is None else pending.entry
            if entry is not None and entry.logits is not None:
                scores = np.array([entry.score], np.float32)
                masks.append(ObjectMask(name, Decoded(scores, entry.logits[None]), entry.appearance))
        return tuple(masks)

    def _entries(self) -> list[Remembered]:
        pending = [one.entry for waiting in self.pending.values() for one in waiting.values()]
        known = [
            entry
            for memory in self.memories.values()
            for entries in (memory.conditioning, memory.others)
            for entry in entries.values()
        ]
        return known + pending


#: 256 numbers of 4 bytes, and their overhead.
_POINTER_BYTES = 1200


def _some(name: int, frames: list[int]) -> dict[int, list[int]]:
    return {name: frames} if frames else {}


def _remembered(tracked: Tracked) -> Remembered:
    logits = tracked.decoded.logits
    assert logits is not None  # engines that track always return them
    # A copy: the engine's array may be a part of a whole batch.
    return Remembered(
        tracked.features, tracked.pointer, np.array(logits[0]), tracked.appearance, float(tracked.decoded.scores[0])
    )
