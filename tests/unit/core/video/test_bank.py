"""What a frame of an object attends to, and that dropping the rest changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.video.bank import Attended, ObjectMemory, Remembered
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.models.memory_traits import MEMORY_TRAITS

TRAITS = MEMORY_TRAITS["sam2.1"]


def remembered(name: str) -> Remembered:
    return Remembered(f"memory {name}", f"pointer {name}", np.zeros((2, 2), np.float32), 1.0, 0.5)


def tracked(memory: ObjectMemory, frames: range, *, keep_all: bool = True) -> None:
    for frame in frames:
        memory.tracked.set(frame, reverse=frames.step < 0)
        if frame not in memory.conditioning:
            memory.put(frame, remembered(f"{frame}"), conditions=False)
        if not keep_all:
            memory.prune(frame)


def seen(attended: Attended) -> tuple[set[object], set[object], int]:
    """Attention does not know the order of what it is given."""
    return set(attended.memories), set(attended.pointers), attended.span


def test_a_frame_attends_to_its_prompts_and_to_the_frames_just_before_it() -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(0, remembered("prompt"), conditions=True)
    tracked(memory, range(30))
    attended = memory.attended(30, reverse=False, length=100)
    assert attended.memories[0] == ("memory prompt", 0)
    assert set(attended.memories[1:]) == {(f"memory {30 - age}", age) for age in range(1, 7)}
    assert set(attended.pointers) == {("pointer prompt", 30), *((f"pointer {30 - age}", age) for age in range(1, 16))}
    assert attended.span == 15


def test_backward_a_frame_attends_to_the_frames_after_it_and_to_no_pointer_of_an_earlier_prompt() -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(10, remembered("early"), conditions=True)
    memory.put(40, remembered("late"), conditions=True)
    tracked(memory, range(40, 30, -1))
    attended = memory.attended(30, reverse=True, length=None)
    assert {entry for entry, age in attended.memories if age == 0} == {"memory early", "memory late"}
    assert ("memory 31", 1) in attended.memories
    assert ("pointer late", 10) in attended.pointers
    assert "pointer early" not in {pointer for pointer, _ in attended.pointers}


@pytest.mark.parametrize(("length", "span"), [(None, 15), (100, 15), (8, 7), (2, 1), (1, 1)])
def test_a_short_video_spreads_its_pointers_over_its_length(length: int | None, span: int) -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(0, remembered("prompt"), conditions=True)
    assert memory.attended(0, reverse=False, length=length).span == span


def test_of_many_prompts_the_nearest_are_attended_to_and_the_others_are_ordinary() -> None:
    memory = ObjectMemory(MEMORY_TRAITS["sam3"])
    for frame in (0, 10, 20, 27, 50, 60):
        memory.put(frame, remembered(f"{frame}"), conditions=True)
    attended = memory.attended(30, reverse=False, length=None)
    assert {entry for entry, age in attended.memories if age == 0} == {f"memory {at}" for at in (10, 20, 27, 50)}
    memory.put(29, remembered("29"), conditions=True)
    memory.put(28, remembered("28"), conditions=True)
    memory.put(26, remembered("26"), conditions=True)
    attended = memory.attended(30, reverse=False, length=None)
    assert {entry for entry, age in attended.memories if age == 0} == {f"memory {at}" for at in (27, 28, 29, 50)}
    assert ("memory 26", 4) in attended.memories
    assert ("pointer 26", 4) in attended.pointers


def test_what_was_forgotten_is_told() -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(0, remembered("prompt"), conditions=True)
    tracked(memory, range(60), keep_all=False)
    assert memory.forgotten(59, reverse=False) == []
    assert memory.forgotten(30, reverse=False) == [29, 28, 27, 26, 25, 24]
    assert memory.forgotten(70, reverse=False) == []


def test_a_history_keeps_more() -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(0, remembered("prompt"), conditions=True)
    tracked(memory, range(60))
    memory.prune(59, history=40)
    assert memory.forgotten(30, reverse=False) == []
    assert memory.others[25].logits is not None
    assert memory.find(18) is None


def test_memory_is_flat_over_a_long_video() -> None:
    memory = ObjectMemory(TRAITS)
    memory.put(0, remembered("prompt"), conditions=True)
    tracked(memory, range(100), keep_all=False)
    before = len(memory.others)
    tracked(memory, range(100, 3000), keep_all=False)
    assert len(memory.others) == before
    assert len(memory.tracked) == 1


def test_too_many_conditioning_frames_are_dropped_but_never_the_first() -> None:
    memory = ObjectMemory(TRAITS)
    for frame in (5, 9, 1, 7):
        memory.put(frame, remembered(f"{frame}"), conditions=True)
    assert memory.drop_conditioning(4) == []
    assert memory.drop_conditioning(2) == [9, 1]
    assert list(memory.conditioning) == [5, 7]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True),
    st.integers(0, 60),
    st.integers(1, 30),
    st.integers(1, 30),
    st.sampled_from(["sam2.1", "sam3"]),
)
def test_dropping_changes_nothing_forward_and_then_backward_from_a_prompt(
    prompts: list[int], start: int, forward: int, backward: int, generation: str
) -> None:
    """Track forward from anywhere, then backward from a conditioning frame, as one does with a click in the middle."""
    traits: MemoryTraits = MEMORY_TRAITS[generation]
    whole, pruned = ObjectMemory(traits), ObjectMemory(traits)
    for memory in (whole, pruned):
        for frame in prompts:
            memory.put(frame, remembered(f"{frame}"), conditions=True)
    way = [(start + step, False) for step in range(forward)]
    way += [(prompts[0] - step, True) for step in range(min(backward, prompts[0] + 1))]
    for frame, reverse in way:
        expected = whole.attended(frame, reverse=reverse, length=None)
        if not pruned.forgotten(frame, reverse=reverse):
            assert seen(pruned.attended(frame, reverse=reverse, length=None))[0] == seen(expected)[0]
        else:  # only where the backward run crosses frames that were tracked forward, far from any prompt
            assert reverse
        for memory in (whole, pruned):
            memory.tracked.set(frame, reverse=reverse)
            if frame not in memory.conditioning:
                memory.put(frame, remembered(f"{frame} {reverse}"), conditions=False)
        pruned.prune(frame)
