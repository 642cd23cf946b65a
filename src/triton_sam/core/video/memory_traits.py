"""How a family of models remembers objects in a video: numbers and options, as its published predictor has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """The memory of one generation of SAM.

    Attributes:
        pointer_positions: whether object pointers have a position in time (SAM 2.1), else none (SAM 2).
        marks_occlusion: whether the memory of a frame without the object has an embedding of its own (SAM 2.1).
        most_conditioning: conditioning frames that a frame attends to; None for all.
        clears_around_prompts: whether a correction of a session's only object clears the memories near it (SAM 3).
        mask_after_sigmoid: whether the memory encoder resizes a mask after its sigmoid, not before it (SAM 3).
        soft_masks: whether a mask that a person gives keeps soft edges for the network, and has logits of 1024 (SAM 3).
        corrections_condition: whether a corrected frame becomes a conditioning frame; if not, tracking it again
            overwrites the correction.
        learned_corrections: whether the memory was trained with prompts in tracked frames. If not, a box there is read
            without memories, and a mask without pixels is not corrected but forgotten.
        memories: frames with memories that are attended to: conditioning ones count as one.
        pointers: frames with object pointers that are attended to; likewise.
        width: channels of a memory.
    """

    pointer_positions: bool = True
    marks_occlusion: bool = True
    most_conditioning: int | None = None
    clears_around_prompts: bool = False
    mask_after_sigmoid: bool = False
    soft_masks: bool = False
    corrections_condition: bool = True
    learned_corrections: bool = True
    memories: int = 7
    pointers: int = 16
    width: int = 64
