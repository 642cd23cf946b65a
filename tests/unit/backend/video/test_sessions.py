"""Open sessions: how many, how large, for how long, and that their memory comes back."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest

from tests.unit.backend.scheduler_helpers import PATIENCE, Counts
from tests.unit.backend.video.video_helpers import MEMORY_BYTES, Film, MakeFilm, TrackingFake
from tests.waiting import eventually
from triton_sam.backend.video import runner as runner_module
from triton_sam.backend.video.track_session import Limits
from triton_sam.core.video.request import Do
from triton_sam.errors import InvalidInput, QueueFull, SessionExpired, TooLarge, Unavailable

#: Of one object in one frame: its memory, its logits and its pointer.
FRAME_BYTES = MEMORY_BYTES + 256 * 256 * 4 + 1200


def is_gone(film: Film) -> bool:
    runner = film.scheduler.video
    assert runner is not None
    return not runner.has(film.name)


def test_two_hundred_sessions_that_are_forgotten_leave_nothing(
    film: MakeFilm, engine: TrackingFake, counts: Counts
) -> None:
    films, sessions = [], []
    for number in range(200):
        films.append(film(f"{number}", idle_seconds=0.5))
        films[-1].prompt(0).outcome()
        runner = films[0].scheduler.video
        assert runner is not None
        sessions += [weakref.ref(line.session) for line in runner._store if line.name == f"{number}"]
    assert len(sessions) == 200
    eventually(lambda: not len(runner._store), "all sessions expire")
    eventually(lambda: counts["video_sessions"] == counts["video_bytes"] == 0, "the gauges say so")
    gc.collect()
    assert [session for session in sessions if session() is not None] == []
    assert counts["video_expired"] == 200
    with pytest.raises(SessionExpired):
        films[7].track(1)


@pytest.mark.parametrize("end", ["expire", "close"])
def test_much_freed_memory_goes_back_to_the_operating_system(
    film: MakeFilm, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    returned: list[int] = []
    monkeypatch.setattr(runner_module, "_MUCH_FREED", 3 * FRAME_BYTES)
    monkeypatch.setattr(runner_module, "return_freed_memory", lambda: returned.append(len(runner._store)))
    films = [film(f"{number}", idle_seconds=1.0 if end == "expire" else 300.0) for number in range(7)]
    runner = films[0].scheduler.video
    assert runner is not None
    for one in films:
        one.prompt(0).outcome()
    assert not returned
    if end == "close":
        for one in films:
            one.send(Do.CLOSE).outcome()
    eventually(lambda: not len(runner._store), "the end of all sessions")
    eventually(lambda: returned, "the memory")
    assert len(returned) <= 2, "not for every session"


def test_a_session_with_steps_under_way_does_not_expire(film: MakeFilm, engine: TrackingFake) -> None:
    one = film("one", idle_seconds=0.01)
    waiting = one.send(Do.TRACK, step=5, frame=5)  # for the steps before it
    other = film("other")
    eventually(lambda: is_gone(other), "the idle session expires")
    assert not is_gone(one)
    assert waiting.empty


def test_the_least_recently_used_idle_session_makes_room(film: MakeFilm, engine: TrackingFake) -> None:
    one, two = film("one", sessions=2), film("two")
    one.prompt(0).outcome()
    three = film("three")
    assert is_gone(two)
    assert not is_gone(one)
    engine.track_gate.clear()
    running, also = one.track(1), three.prompt(0)
    with pytest.raises(Unavailable, match="2 videos are being tracked already"):
        Film(one.scheduler, "four").open()
    engine.track_gate.set()
    running.outcome()
    also.outcome()


def test_sessions_share_their_bytes(film: MakeFilm) -> None:
    one = film("one", total_bytes=3 * FRAME_BYTES + 1000, session_bytes=10 * FRAME_BYTES)
    two = film("two")
    for each in (one, two):
        each.prompt(0).outcome()
    two.track(1).outcome()
    assert not is_gone(one)
    two.track(2).outcome()  # four frames in all
    two.track(3)
    eventually(lambda: is_gone(one), "the idle session goes")


def test_a_session_keeps_to_its_bytes_by_dropping_history(film: MakeFilm) -> None:
    budget = 40 * FRAME_BYTES
    one = film(session_bytes=budget, session=Limits(history=1000))
    one.prompt(0).outcome()
    runner = one.scheduler.video
    assert runner is not None
    for frame in range(1, 120):
        one.track(frame).outcome()
    (line,) = runner._store
    assert 10 * FRAME_BYTES < line.memory_bytes <= budget


def test_objects_beyond_the_bytes_of_a_session_are_refused_until_some_go(film: MakeFilm) -> None:
    one = film(session_bytes=4 * FRAME_BYTES)
    for name in range(5):
        one.prompt(0, name).outcome()
    error = one.prompt(0, 5).error()
    assert isinstance(error, TooLarge)
    assert "TRITON_SAM_VIDEO_SESSION_BYTES" in str(error)
    one.next -= 1
    for name in (0, 1):
        one.send(Do.REMOVE, object=name).outcome()
    one.prompt(0, 5).outcome()


def test_frames_that_wait_count_as_bytes(film: MakeFilm, engine: TrackingFake) -> None:
    one = film(session_bytes=FRAME_BYTES + 100)
    one.prompt(0).outcome()
    engine.track_gate.clear()
    engine.track_arrived.clear()
    one.track(1)
    assert engine.track_arrived.wait(PATIENCE), "it does not wait any more"
    one.track(2)
    with pytest.raises(QueueFull, match="memories and waiting frames"):
        one.track(3)
    engine.track_gate.set()


def test_a_name_is_taken_once(film: MakeFilm) -> None:
    film("one")
    again = Film(film("two").scheduler, "one")
    again.next = 1
    with pytest.raises(InvalidInput, match="'one' is open already"):
        again.open()


def test_a_session_never_makes_room_for_itself_by_going(film: MakeFilm) -> None:
    one = film(total_bytes=FRAME_BYTES + 10, session_bytes=10 * FRAME_BYTES)
    one.prompt(0).outcome()
    with pytest.raises(QueueFull, match="have used up their memory"):
        one.track(1)
    one.next -= 1
    assert one.send(Do.STATE).outcome().known == (1,)


def test_states_count_among_all_bytes(film: MakeFilm, engine: TrackingFake) -> None:
    one = film("one", total_bytes=4 * FRAME_BYTES, session_bytes=10 * FRAME_BYTES)
    one.prompt(0).outcome()
    state = one.track(1, state=True).outcome().state_bytes()
    assert state is not None
    engine.track_gate.clear()
    engine.track_arrived.clear()
    running = one.track(2)
    assert engine.track_arrived.wait(PATIENCE)
    two = Film(one.scheduler, "two")
    with pytest.raises(QueueFull, match="have used up their memory"):
        two.send(Do.OPEN, restore=state + bytes(4 * FRAME_BYTES))
    assert is_gone(two)
    engine.track_gate.set()
    running.outcome()


def test_masks_of_a_cleared_frame_are_bounded_too(film: MakeFilm) -> None:
    one = film()
    one.prompt(0, 1).outcome()
    one.prompt(0, 2).outcome()
    runner = one.scheduler.video
    assert runner is not None
    stepper = runner._turns._stepper
    stepper._limits = dataclasses.replace(stepper._limits, answer_pixels=64)
    assert isinstance(one.send(Do.CLEAR, frame=0, object=1).error(), TooLarge)
    two = Film(one.scheduler, "two")
    assert isinstance(two.send(Do.OPEN, width=100_000, height=100_000).error(), TooLarge)
