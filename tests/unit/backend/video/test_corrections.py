"""What the engine is asked for when a tracked frame is corrected, by how a memory was trained."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.unit.backend.scheduler_helpers import FRAME
from triton_sam.backend.video.track_session import Limits, TrackSession
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Decoded, HostEmbedding
from triton_sam.engines.tracking import Tracked, TrackRow
from triton_sam.models.memory_traits import MEMORY_TRAITS

LEARNED = MEMORY_TRAITS["sam2.1"]
UNLEARNED = dataclasses.replace(LEARNED, learned_corrections=False)
EMBEDDING = HostEmbedding(FRAME, {})
CLICK = ObjectPrompt(np.ones((1, 2), np.float32), np.ones(1, np.int32))
BOX = ObjectPrompt(np.zeros((0, 2), np.float32), np.zeros(0, np.int32), np.array([0, 0, 4, 4], np.float32))


def found(shade: float) -> Tracked:
    """A mask that is everywhere above 0 or nowhere."""
    return Tracked(Decoded(np.ones(1, np.float32), np.full((1, 8, 8), shade, np.float32)), shade, object(), object())


def corrected(session: TrackSession, prompt: ObjectPrompt, *, is_lost: bool = False) -> TrackRow:
    """The row of a prompt in frame 1, in which an object was tracked that was clicked in frame 0."""
    session.prompt(0, 1, EMBEDDING, CLICK).finish([found(5.0)])
    session.track(0, EMBEDDING)
    step = session.track(1, EMBEDDING)
    step.finish([found(-1024.0 if is_lost else 5.0)] * len(step.rows))
    (row,) = session.prompt(1, 1, EMBEDDING, prompt).rows
    return row


@pytest.mark.parametrize("prompt", [CLICK, BOX], ids=["click", "box"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_memory_that_was_trained_with_corrections(prompt: ObjectPrompt, is_lost: bool) -> None:
    row = corrected(TrackSession(LEARNED, Limits()), prompt, is_lost=is_lost)
    assert row.attended is not None
    assert row.previous is not None


@pytest.mark.parametrize(
    ("prompt", "is_lost", "remembers", "corrects"),
    [(CLICK, False, True, True), (CLICK, True, True, False), (BOX, False, False, False), (BOX, True, False, False)],
)
def test_one_that_was_trained_without(prompt: ObjectPrompt, is_lost: bool, remembers: bool, corrects: bool) -> None:
    row = corrected(TrackSession(UNLEARNED, Limits()), prompt, is_lost=is_lost)
    assert (row.attended is not None, row.previous is not None) == (remembers, corrects)
