"""Ranges of tracked frames say the same as a dictionary of all frames, and stay few."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.video.frame_ranges import FrameRanges

_CHANGES = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([True, False, None])), max_size=60)


@given(_CHANGES)
def test_they_are_a_dictionary(changes: list[tuple[int, bool | None]]) -> None:
    ranges, known = FrameRanges(), dict[int, bool]()
    for frame, reverse in changes:
        if reverse is None:
            ranges.discard(frame)
            known.pop(frame, None)
        else:
            ranges.set(frame, reverse=reverse)
            known[frame] = reverse
    assert {frame: ranges.get(frame) for frame in range(22)} == {frame: known.get(frame) for frame in range(22)}
    listed = list(ranges)
    for (_, end, direction), (start, _, other) in itertools.pairwise(listed):
        assert end < start
        assert end + 1 < start or direction != other  # what touches and is alike is one range


def test_a_long_video_is_one_range() -> None:
    ranges = FrameRanges()
    for frame in range(5000):
        ranges.set(frame, reverse=False)
    assert list(ranges) == [(0, 4999, False)]


def test_ranges_can_be_restored() -> None:
    ranges = FrameRanges()
    for frame in (3, 4, 9, 8, 30):
        ranges.set(frame, reverse=frame > 5)
    again = FrameRanges()
    for first, last, reverse in ranges:
        again.set_range(first, last, reverse=reverse)
    assert list(again) == list(ranges)
    again.set(5, reverse=False)
    assert again.get(5) is False
