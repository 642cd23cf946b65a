"""The interface of engines that track objects through a video, and its data types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.bank import Attended
from triton_sam.engines.base import Decoded, Embedding, Engine, FloatArray


class Remember(str, Enum):
    """What the memory encoder gets of a mask."""

    SOFT = "soft"
    """Its probabilities, of a frame that was tracked."""
    HARD = "hard"
    """Only which pixels are above 0, of a frame that a person has prompted."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackRow:
    """One object in one frame.

    Attributes:
        embedding: of the frame. Rows of one frame share it.
        attended: what the object attends to; None for a first prompt, which sees only its own frame.
        prompt: points and a box in original pixels; None if the frame is only tracked.
        previous: [h,w] float32 low-resolution logits that are corrected by the prompt, or None.
        mask: [H,W] bool in original pixels: the mask itself, given by a person; then there is no other prompt.
        remember: how the result is encoded as a memory.
        pixels, columns: as in :class:`~triton_sam.engines.base.Row`.
    """

    embedding: Embedding
    attended: Attended | None = None
    prompt: ObjectPrompt | None = None
    previous: FloatArray | None = None
    mask: npt.NDArray[np.bool_] | None = None
    remember: Remember = Remember.SOFT
    pixels: bool = False
    columns: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """The result of one row.

    Attributes:
        decoded: one mask; ``logits`` [1,h,w] are always there: -1024 everywhere if the object is not in the frame.
        appearance: the object's score of being there; above 0 it is.
        features, pointer: the memory, in the engine's own form, for later rows.
    """

    decoded: Decoded
    appearance: float
    features: Any
    pointer: Any


class HostMemory(NamedTuple):
    """A memory outside the engine.

    Attributes:
        features: [C,h,w] bits of bfloat16, in which memories are kept; None if only the pointer is there.
        pointer: [256] float32.
    """

    features: npt.NDArray[np.uint16] | None
    pointer: FloatArray


class TrackingEngine(Engine, Protocol):
    """An engine that remembers. ``track`` runs on one thread, at the same time as everything else; the other methods on
    any thread.

    Which mask is chosen, and what an object that is not there gives, is the model's definition and done here.

    Attributes:
        track_rows: number of rows that one call of ``track`` takes at best; more are divided.
        memory_bytes: of one object's memory in one frame, without logits.
    """

    track_rows: int
    memory_bytes: int

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        """Rows of any objects, frames and videos -> one result each, in order.

        The number of masks that a row chooses from follows its prompt: three for at most one point, one for more.
        """

    def memories_to_host(self, memories: Sequence[tuple[Any, Any]]) -> list[HostMemory]:
        """Of each memory's (features, pointer), together: there may be hundreds."""

    def memory_from_host(self, memory: HostMemory) -> tuple[Any, Any]:
        """(features, pointer) of a memory; the caller has checked shapes and finiteness."""

    def memory_shape(self) -> tuple[int, int, int]:
        """(C, h, w) of :class:`HostMemory`."""
