"""What people do and when: the same in every run, and at the promised rates."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.bench.users.schedule import Behaviour, Kind, Step, schedule

HOVERS = (Kind.HOVER, Kind.LAST_HOVER)
BEHAVIOUR = Behaviour()


def movements(steps: list[Step]) -> list[list[Step]]:
    """The hovers between two rests; the last one may be cut by the end."""
    found: list[list[Step]] = [[]]
    for step in steps:
        if step.kind in HOVERS:
            found[-1].append(step)
        if step.kind is Kind.LAST_HOVER:
            found.append([])
    return [each for each in found if each]


@given(
    person=st.integers(0, 99),
    seconds=st.floats(1, 200),
    image_seconds=st.floats(0.2, 90),
    seed=st.integers(0, 5),
)
def test_a_schedule_is_in_order_and_has_the_promised_rates(
    person: int, seconds: float, image_seconds: float, seed: int
) -> None:
    behaviour = Behaviour(image_seconds=image_seconds)
    steps = schedule(person, 100, seconds, behaviour, seed)
    times = [step.at for step in steps]
    assert times == sorted(times)
    assert all(0 <= at < seconds for at in times)
    assert all(0 < step.x < 1 and 0 < step.y < 1 for step in steps if step.kind is not Kind.IMAGE)
    for movement in movements(steps):
        gaps = [later.at - earlier.at for earlier, later in pairwise(movement)]
        assert gaps == pytest.approx([1 / behaviour.hover_rate] * len(gaps))
        assert len(movement) <= behaviour.movement[1] * behaviour.hover_rate
    images = [step.at for step in steps if step.kind is Kind.IMAGE]
    gaps = [later - earlier for earlier, later in pairwise(images)]
    assert gaps == pytest.approx([image_seconds] * len(gaps))
    assert abs(len(images) - seconds / image_seconds) < 1
    assert len({step.at for step in steps if step.kind is Kind.CLICK}) == sum(s.kind is Kind.CLICK for s in steps)


def test_a_click_comes_where_the_mouse_rests() -> None:
    steps = schedule(3, 10, 120.0, BEHAVIOUR)
    clicks = 0
    for before, step in pairwise(steps):
        if step.kind is Kind.CLICK:
            clicks += 1
            assert before.kind is Kind.LAST_HOVER
            assert (before.x, before.y) == pytest.approx((step.x, step.y))
            assert step.at - before.at >= BEHAVIOUR.pause[0]
    assert 20 < clicks < 60


def test_a_schedule_depends_on_seed_and_person_only() -> None:
    assert schedule(3, 10, 30.0, BEHAVIOUR, 1) == schedule(3, 10, 30.0, BEHAVIOUR, 1)
    assert schedule(3, 10, 30.0, BEHAVIOUR, 1) != schedule(3, 10, 30.0, BEHAVIOUR, 2)
    assert schedule(3, 10, 30.0, BEHAVIOUR, 1) != schedule(4, 10, 30.0, BEHAVIOUR, 1)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = (schedule(0, 1, seconds, BEHAVIOUR) for seconds in (10.0, 40.0))
    assert long[: len(short)] == short


def test_images_are_opened_in_turns() -> None:
    per_second = [0] * 60
    for person in range(120):
        images = [step for step in schedule(person, 120, 60.0, BEHAVIOUR) if step.kind is Kind.IMAGE]
        assert len(images) == 1
        per_second[int(images[0].at)] += 1
    assert per_second == [2] * 60
