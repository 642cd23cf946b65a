"""Words on video: what is new, what is tracked already, and the frames in which is looked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.unit.client.video_runs import HEIGHT, LENGTH, VIDEO, WIDTH, client_of
from tests.unit.client.video_server import FakeVideoServer
from triton_sam.client.video_concepts import ConceptTracker
from triton_sam.core.rle import from_rle, rle
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.video.clip import ClipFrame
from triton_sam.video.identities import FoundInstance, new_instances, without_duplicates

#: Where the fake things are: thing -> its columns.
COLUMNS = {1: slice(0, 3), 2: slice(3, 6), 3: slice(6, 9)}


def mask_of(thing: int) -> Any:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[:, COLUMNS[thing]] = True
    return mask


def draw(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
    """Object 1 is the thing 1, and so on: the tests find things in the order of their numbers."""
    return mask_of(name)


def instance(thing: int, score: float = 0.9, concept: int = 0) -> FoundInstance:
    return FoundInstance(concept, score, rle(mask_of(thing)))


class Finder:
    """Finds things by frame; the last entry holds for all later frames."""

    def __init__(self, **by_frame: Sequence[FoundInstance]) -> None:
        self._by_frame = {int(name[1:]): found for name, found in by_frame.items()}
        self.asked: list[int] = []

    def __call__(self, frame: ClipFrame) -> Sequence[FoundInstance]:
        self.asked.append(frame.index)
        known = [index for index in self._by_frame if index <= frame.index]
        return self._by_frame[max(known)] if known else []


def run(finder: Finder, *, first: int = 0, every: int | None = None) -> tuple[list[Any], dict[int, int]]:
    with client_of(FakeVideoServer(draw=draw)) as client:
        tracker = ConceptTracker(client, finder, first=first, every=every)
        frames = list(tracker.track(client.init_state(VIDEO)))
    assert [frame.index for frame in frames] == list(range(first, LENGTH))
    return frames, tracker.concepts


def test_what_is_found_in_one_frame_is_tracked_through_all() -> None:
    finder = Finder(_3=[instance(1, 0.9, 1), instance(2, 0.8)])
    frames, concepts = run(finder, first=3)
    assert finder.asked == [3]
    assert concepts == {1: 1, 2: 0}
    assert all(set(frame.objects) == {1, 2} for frame in frames)
    assert (from_rle(frames[0].objects[2].rle) == mask_of(2)).all()
    assert frames[0].objects[2].score == 0.8


def test_later_looks_keep_numbers_and_add_what_is_new() -> None:
    finder = Finder(_0=[instance(1)], _10=[instance(1, 0.95), instance(2, 0.8, 1)])
    frames, concepts = run(finder, every=5)
    assert finder.asked == [0, 5, 10, 15, 20]
    assert concepts == {1: 0, 2: 1}
    assert [set(frame.objects) for frame in frames] == [{1}] * 10 + [{1, 2}] * (LENGTH - 10)


def test_a_later_instance_needs_a_high_score() -> None:
    _, concepts = run(Finder(_0=[instance(1, 0.6)], _5=[instance(2, 0.65)]), every=5)
    assert concepts == {1: 0}


def test_a_later_look_adds_another_concept_in_the_same_place() -> None:
    """A shirt that is missed when its person is found."""
    things = {1: 1, 2: 1}  # object 2 is where object 1 is

    def draw_both(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
        return mask_of(things[name])

    finder = Finder(_0=[instance(1)], _5=[instance(1), instance(1, 0.8, 1)])
    with client_of(FakeVideoServer(draw=draw_both)) as client:
        tracker = ConceptTracker(client, finder, every=5)
        frames = list(tracker.track(client.init_state(VIDEO)))
    assert tracker.concepts == {1: 0, 2: 1}
    assert [set(frame.objects) for frame in frames] == [{1}] * 5 + [{1, 2}] * (LENGTH - 5)


def test_a_full_video_goes_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """The fake server takes three objects; five are there, of which one comes later."""
    apart = [instance(thing, 0.9 - thing / 100, concept) for concept in (0, 1) for thing in (1, 2)]
    finder = Finder(_0=apart, _10=[*apart, instance(3)])
    with caplog.at_level(logging.WARNING):
        frames, concepts = run(finder, every=5)
    assert len(concepts) == 3
    assert all(set(frame.objects) == {1, 2, 3} for frame in frames)
    (told,) = caplog.messages
    assert told == (
        "frame 0: the server tracks at most 3 objects of this video, so 1 of those found there is left out, "
        "and nothing is looked for from here on"
    )
    assert finder.asked == [0], "nothing more can be added"


def test_a_video_that_fills_later(caplog: pytest.LogCaptureFixture) -> None:
    one, two = [instance(1), instance(2)], [instance(1, 0.95, 1), instance(2, 0.94, 1), instance(3, 0.93, 1)]
    with caplog.at_level(logging.WARNING):
        frames, concepts = run(Finder(_0=one, _5=[*one, *two]), every=5)
    assert concepts == {1: 0, 2: 0, 3: 1}
    assert [len(frame.objects) for frame in frames] == [2] * 5 + [3] * (LENGTH - 5)
    (told,) = caplog.messages
    assert told.startswith("frame 5: the server tracks at most 3 objects of this video, so 2 of those")


def test_a_look_finds_room_when_an_object_is_removed() -> None:
    apart = [instance(thing, 0.9, concept) for concept in (0, 1) for thing in (1, 2)]
    finder = Finder(_0=apart)
    server = FakeVideoServer(draw=lambda image, name, memory, size: mask_of((name - 1) % 3 + 1))
    with client_of(server) as client:
        tracker = ConceptTracker(client, finder, every=5)
        state = client.init_state(VIDEO)
        for frame in tracker.track(state):
            if frame.index == 7:
                client.remove_object(state, 3)
    assert finder.asked == [0, 10]
    assert set(tracker.concepts) == {1, 2, 3, 4}


def test_another_refusal_ends_the_run() -> None:
    server = FakeVideoServer(draw=draw, faults={1: TooLarge("the image is too large")})
    with client_of(server) as client, pytest.raises(TooLarge, match="the image is too large"):
        list(ConceptTracker(client, Finder(_0=[instance(1)])).track(client.init_state(VIDEO)))


def test_frames_before_anything_is_found_are_empty() -> None:
    frames, concepts = run(Finder(_8=[instance(1)]), every=4)
    assert [len(frame.objects) for frame in frames] == [0] * 8 + [1] * (LENGTH - 8)
    assert concepts == {1: 0}


def test_a_look_in_every_frame() -> None:
    finder = Finder(_0=[instance(1)])
    run(finder, every=1)
    assert finder.asked == list(range(LENGTH))


def test_nothing_found_and_no_further_look() -> None:
    with client_of(FakeVideoServer(draw=draw)) as client:
        tracker = ConceptTracker(client, Finder())
        with pytest.raises(InvalidInput, match="nothing of that was found in frame 0"):
            list(tracker.track(client.init_state(VIDEO)))


def test_a_look_behind_the_end() -> None:
    with client_of(FakeVideoServer(draw=draw)) as client:
        tracker = ConceptTracker(client, Finder(), first=LENGTH, every=2)
        assert list(tracker.track(client.init_state(VIDEO))) == []


@pytest.mark.parametrize("stop", [3, 5, 12])
def test_a_run_that_goes_on_finds_the_same(stop: int) -> None:
    finds = {"_0": [instance(1)], "_10": [instance(2)]}
    whole, _ = run(Finder(**finds), every=5)
    with client_of(FakeVideoServer(draw=draw)) as client:
        tracker = ConceptTracker(client, Finder(**finds), every=5)
        state = client.init_state(VIDEO)
        begun = []
        for frame in tracker.track(state):
            begun.append(frame)
            if frame.index == stop:
                break
        rest = list(tracker.track(state, stop + 1))
    assert [(frame.index, set(frame.objects)) for frame in begun + rest] == [
        (frame.index, set(frame.objects)) for frame in whole
    ]


# Which instances are new


def wide(start: int, stop: int, score: float, concept: int = 0) -> FoundInstance:
    mask = np.zeros((10, 100), np.bool_)
    mask[:, start:stop] = True
    return FoundInstance(concept, score, rle(mask))


def test_of_two_instances_in_one_place_the_better_one_stays() -> None:
    weak, strong, beside = wide(0, 40, 0.6), wide(5, 45, 0.9), wide(44, 90, 0.7)
    assert without_duplicates([weak, strong, beside]) == [strong, beside]


def test_two_concepts_may_be_in_one_place() -> None:
    one, other = wide(0, 40, 0.6, 0), wide(0, 40, 0.9, 1)
    assert without_duplicates([one, other]) == [other, one]


def test_an_empty_mask_is_no_instance() -> None:
    assert without_duplicates([wide(0, 0, 0.9)]) == []


@pytest.mark.parametrize(("overlap", "is_new"), [(0, True), (18, True), (19, False), (100, False)])
def test_an_instance_on_something_tracked_is_that(overlap: int, is_new: bool) -> None:
    # Two masks of 100 columns that share some: their IoU is above a tenth from 19 columns on.
    mask = np.zeros((10, 200), np.bool_)
    mask[:, :100] = True
    other = np.zeros((10, 200), np.bool_)
    other[:, 100 - overlap : 200 - overlap] = True
    found = FoundInstance(0, 0.9, rle(other))
    assert bool(new_instances([found], [(0, rle(mask))], is_first=False)) is is_new


@pytest.mark.parametrize(("concept", "is_new"), [(0, False), (1, True), (None, False)])
def test_only_what_is_tracked_of_its_own_concept_counts(concept: int | None, is_new: bool) -> None:
    """Or of none: an object that somebody has clicked may be anything."""
    found = wide(0, 40, 0.9)
    assert bool(new_instances([found], [(concept, found.rle)], is_first=False)) is is_new
