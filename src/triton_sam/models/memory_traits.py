"""The memory of each generation of SAM."""

from __future__ import annotations

from triton_sam.core.video.memory_traits import MemoryTraits

#: By :attr:`~triton_sam.models.architecture.Architecture.generation`.
MEMORY_TRAITS = {
    "sam2": MemoryTraits(pointer_positions=False, marks_occlusion=False),
    "sam2.1": MemoryTraits(),
    "sam3": MemoryTraits(most_conditioning=4, clears_around_prompts=True, mask_after_sigmoid=True, soft_masks=True),
}
