"""How often a video session asks for its state."""

from __future__ import annotations

import pytest

from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_session import SessionOptions, VideoSession

MB = 1024 * 1024


@pytest.mark.parametrize(("state_bytes", "wanted"), [(0, 30), (7 * MB, 30), (15 * MB, 30), (40 * MB, 80)])
def test_a_large_state_is_asked_for_less_often(state_bytes: int, wanted: int) -> None:
    checkpoint = Checkpoint(0, b"\0" * state_bytes) if state_bytes else None
    session = VideoSession([], {}, SessionOptions(state_every=30), checkpoint=checkpoint)
    asked = [session.submit("track", b"frame", frame=frame).keeps_state for frame in range(100)]
    assert asked.index(True) == wanted - 1


def test_large_frames_bring_a_state_sooner() -> None:
    session = VideoSession([], {}, SessionOptions(state_every=30), checkpoint=Checkpoint(0, b"\0" * 40 * MB))
    asked = [session.submit("track", b"\0" * 4 * MB, frame=frame).keeps_state for frame in range(30)]
    assert asked.index(True) == 16
