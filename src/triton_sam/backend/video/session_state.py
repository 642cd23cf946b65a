"""A session as arrays in host memory, with which it can go on in another process or on another server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.backend.video.track_session import Limits, Pending, TrackSession
from triton_sam.core.video.bank import ObjectMemory, Remembered
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.core.video.state import FrameState, ObjectState, SessionState
from triton_sam.engines.base import FloatArray
from triton_sam.engines.tracking import HostMemory, TrackingEngine

_LARGEST_HALF = 65504.0


@dataclass(frozen=True, slots=True, eq=False)
class StateNotes:
    """A session behind one of its steps: references only, which later steps do not change.

    Attributes:
        frames: by object; memories are still the engine's.
        tracked: as in :class:`~triton_sam.core.video.state.ObjectState`, by object.
    """

    engine: TrackingEngine
    length: int | None
    size: tuple[int, int] | None
    newest: int | None
    frames: dict[int, list[NotedFrame]]
    tracked: dict[int, tuple[tuple[int, int, bool], ...]]

    def state(self) -> SessionState:
        """Copies the memories to the host, on any thread."""
        listed = [frame for frames in self.frames.values() for frame in frames]
        memories = iter(self.engine.memories_to_host([(frame.features, frame.pointer) for frame in listed]))
        objects = [
            ObjectState(name, tuple(frame.state(next(memories)) for frame in frames), self.tracked[name])
            for name, frames in self.frames.items()
        ]
        return SessionState(self.engine.spec.id, self.length, self.size, self.newest, tuple(objects))


@dataclass(frozen=True, slots=True, eq=False)
class NotedFrame:
    """As :class:`~triton_sam.core.video.state.FrameState`, with the engine's memory.

    Attributes:
        features: None if only the pointer is needed.
        logits: [h,w] float32; None if they are not needed.
    """

    frame: int
    conditions: bool
    pending: bool
    features: Any
    pointer: Any
    logits: FloatArray | None
    appearance: float
    score: float

    def state(self, memory: HostMemory) -> FrameState:
        """With a memory in the host's form."""
        logits = None
        if self.logits is not None:
            logits = self.logits.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
        return FrameState(
            self.frame,
            self.conditions,
            self.pending,
            memory.features,
            memory.pointer,
            logits,
            self.appearance,
            self.score,
        )


def note_state(session: TrackSession, engine: TrackingEngine, traits: MemoryTraits) -> StateNotes:
    """Everything that later frames need, without the history."""
    newest = -1 if session.newest is None else session.newest
    noted, tracked = {}, {}
    for name, memory in session.memories.items():
        frames = [_noted(frame, entry, conditions=True) for frame, entry in memory.conditioning.items()]
        for frame, entry in memory.others.items():
            whole = memory.reaches(frame, newest, traits.memories - 1)
            if whole or memory.reaches(frame, newest, traits.pointers - 1):
                frames.append(_noted(frame, entry, conditions=False, whole=whole))
        for frame, one in session.pending.get(name, {}).items():
            frames.append(_noted(frame, one.entry, conditions=one.conditions, pending=True))
        noted[name], tracked[name] = frames, tuple(memory.tracked)
    return StateNotes(engine, session.length, session.size, session.newest, noted, tracked)


def _noted(frame: int, entry: Remembered, *, conditions: bool, pending: bool = False, whole: bool = True) -> NotedFrame:
    """
    Args:
        whole: its memory too, if it is still kept; else only its pointer.
    """
    return NotedFrame(
        frame,
        conditions,
        pending,
        entry.features if whole else None,
        entry.pointer,
        entry.logits if conditions or pending else None,
        entry.appearance,
        entry.score,
    )


def session_of(state: SessionState, traits: MemoryTraits, limits: Limits, engine: TrackingEngine) -> TrackSession:
    """The session of a checked state."""
    session = TrackSession(traits, limits, state.length)
    session.size, session.newest = state.size, state.newest
    for one in state.objects:
        memory = session.memories[one.name] = ObjectMemory(traits)
        for first, last, reverse in one.tracked:
            memory.tracked.set_range(first, last, reverse=reverse)
        for frame in one.frames:
            entry = _remembered(frame, engine)
            if frame.pending:
                session.pending.setdefault(one.name, {})[frame.frame] = Pending(entry, frame.conditions)
            else:
                memory.put(frame.frame, entry, conditions=frame.conditions)
    return session


def _remembered(frame: FrameState, engine: TrackingEngine) -> Remembered:
    features, pointer = engine.memory_from_host(HostMemory(frame.features, frame.pointer))
    logits = None if frame.logits is None else frame.logits.astype(np.float32)
    return Remembered(features, pointer, logits, frame.appearance, frame.score)
