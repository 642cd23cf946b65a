"""A session as arrays in host memory, with which it can go on in another process or on another server."""

from __future__ import annotations

import numpy as np

from triton_sam.backend.video.track_session import Limits, Pending, TrackSession
from triton_sam.core.video.bank import ObjectMemory, Remembered
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.core.video.state import FrameState, ObjectState, SessionState
from triton_sam.engines.tracking import TrackingEngine

_LARGEST_HALF = 65504.0


def state_of(session: TrackSession, engine: TrackingEngine, traits: MemoryTraits) -> SessionState:
    """Everything that later frames need, without the history."""
    newest = -1 if session.newest is None else session.newest
    objects = []
    for name, memory in session.memories.items():
        frames = [_frame(frame, entry, engine, conditions=True) for frame, entry in memory.conditioning.items()]
        for frame, entry in memory.others.items():
            whole = memory.reaches(frame, newest, traits.memories - 1)
            if whole or memory.reaches(frame, newest, traits.pointers - 1):
                frames.append(_frame(frame, entry, engine, conditions=False, whole=whole))
        for frame, one in session.pending.get(name, {}).items():
            frames.append(_frame(frame, one.entry, engine, conditions=one.conditions, pending=True))
        objects.append(ObjectState(name, tuple(frames), tuple(memory.tracked)))
    return SessionState(engine.spec.id, session.length, session.size, session.newest, tuple(objects))


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


def _frame(
    frame: int,
    entry: Remembered,
    engine: TrackingEngine,
    *,
    conditions: bool,
    pending: bool = False,
    whole: bool = True,
) -> FrameState:
    """
    Args:
        whole: its memory too, if it is still kept; else only its pointer.
    """
    features, pointer = engine.memory_to_host(entry.features if whole else None, entry.pointer)
    logits = None
    if (conditions or pending) and entry.logits is not None:
        logits = entry.logits.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    return FrameState(frame, conditions, pending, features, pointer, logits, entry.appearance, entry.score)


def _remembered(frame: FrameState, engine: TrackingEngine) -> Remembered:
    features, pointer = engine.memory_from_host(frame.features, frame.pointer)
    logits = None if frame.logits is None else frame.logits.astype(np.float32)
    return Remembered(features, pointer, logits, frame.appearance, frame.score)
