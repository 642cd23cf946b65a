"""Steps of a video session: in the order of their numbers, each answered once, and one that fails does not count."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from tests.unit.backend.scheduler_helpers import PATIENCE, Counts, Inbox, click, embedding, expect_answer
from tests.unit.backend.video.video_helpers import POINT, Film, Letterbox, MakeFilm, TrackingFake
from tests.waiting import eventually
from triton_sam.backend.video.session_state import StateNotes
from triton_sam.backend.video.track_session import Limits
from triton_sam.core.images import EncodedImage
from triton_sam.core.rle import rle
from triton_sam.core.video.request import Do
from triton_sam.core.video.state_bytes import pack_state
from triton_sam.errors import (
    Cancelled,
    InternalError,
    InvalidInput,
    QueueFull,
    SessionExpired,
    TooLarge,
    TooManyObjects,
    TritonSamError,
    Unavailable,
)


def refused(send: object) -> TritonSamError:
    with pytest.raises(TritonSamError) as caught:
        send()  # type: ignore[operator]
    return caught.value


def picture(width: int, height: int) -> EncodedImage:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=10**6, max_pixels=10**6)


def hold(film: Film, engine: TrackingFake, frame: int) -> Letterbox:
    """Holds the video thread with one frame inside."""
    engine.track_gate.clear()
    engine.track_arrived.clear()
    box = film.track(frame)
    assert engine.track_arrived.wait(PATIENCE)
    return box


def await_encoded(film: Film) -> None:
    """Waits until the frames of all steps that wait are encoded, of all sessions."""
    scheduler = film.scheduler
    runner = scheduler.video
    assert runner is not None

    def ready() -> bool:
        with scheduler._lock:
            return all(step.is_ready for line in runner._store for step in line.steps())

    eventually(ready, "the frames are encoded", pause=0.001)


def test_an_object_is_tracked_from_frame_to_frame(film: MakeFilm, engine: TrackingFake, counts: Counts) -> None:
    one = film()
    assert one.prompt(0, 7).shades() == [0]
    outcome = one.track(0).outcome()
    assert (outcome.objects, outcome.appearance, outcome.known) == ((7,), (1.0,), (7,))
    assert outcome.geometry is not None
    assert (outcome.geometry.width, outcome.geometry.height) == (8, 8)
    assert one.prompt(1, 9).shades() == [1]
    assert [one.track(frame).shades() for frame in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
    assert engine.calls[-1] == [(3, 3), (3, 2)]  # both objects in one call; their prompts and the frames behind these
    assert one.send(Do.REMOVE, object=7).outcome().known == (9,)
    assert one.track(4).outcome().objects == (9,)
    assert one.send(Do.RESET).outcome().known == ()
    assert isinstance(one.track(5).error(), InvalidInput)
    assert counts["video_frames"] == 5
    assert counts["video_rows"] == 8


def test_steps_that_arrive_in_any_order_are_taken_in_their_own(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    order = list(range(2, 22))
    random.Random(3).shuffle(order)
    boxes = {step: one.send(Do.TRACK, step=step, frame=step) for step in order}
    one.send(Do.PROMPT, step=1, frame=0, object=1, **POINT)
    assert [boxes[step].shades() for step in range(2, 22)] == [[step] for step in range(2, 22)]
    assert [shade for call in engine.calls for shade, _ in call] == [0, *range(2, 22)]


def test_a_doubled_step_is_refused_by_its_name(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    one.track(12).outcome()
    assert "step 2 (frame 12) was taken already" in str(refused(lambda: one.send(Do.TRACK, step=2, frame=12)))
    assert "step 0 (open) was taken already" in str(refused(lambda: one.send(Do.OPEN, step=0)))
    running, waiting = hold(one, engine, 13), one.track(14)
    assert "step 4 (frame 14) is waiting already" in str(refused(lambda: one.send(Do.TRACK, step=4, frame=14)))
    engine.track_gate.set()
    assert running.shades() == [13]
    assert waiting.shades() == [14]


def test_a_missing_step_is_named_after_a_while(film: MakeFilm) -> None:
    one = film(gap_seconds=0.05)
    late = [one.send(Do.TRACK, step=step, frame=step) for step in (2, 3)]
    for step, box in enumerate(late, 2):
        error = box.error()
        assert isinstance(error, Unavailable)
        assert f"step {step} (frame {step}) was not taken, because step 1 before it did not come" in str(error)
    assert one.prompt(0).shades() == [0]  # the session is as it was


def test_a_step_that_fails_does_not_count_and_names_itself_to_those_behind_it(
    film: MakeFilm, engine: TrackingFake
) -> None:
    one = film()
    one.prompt(0).outcome()
    hold(one, engine, 1)
    engine.bad_shade = 2
    failing, behind, further = one.track(2), one.track(3), one.track(4)
    engine.track_gate.set()
    error = failing.error()
    assert isinstance(error, InternalError)
    assert "RuntimeError" in str(error)
    for box in (behind, further):
        assert "because step 3 (frame 2) before it failed" in str(box.error())
    engine.bad_shade = None
    again = [one.send(Do.TRACK, step=step, frame=step - 1) for step in (3, 4, 5)]
    assert [box.shades() for box in again] == [[2], [3], [4]]


def test_a_step_may_be_sent_again_as_soon_as_its_refusal_is_there(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    hold(one, engine, 1)
    engine.bad_shade = 2
    failing, again = one.track(2), []

    def send_again() -> None:
        engine.bad_shade = None
        again.append(one.send(Do.TRACK, step=3, frame=2))

    failing.when_refused = send_again
    engine.track_gate.set()
    assert isinstance(failing.error(), InternalError)
    assert again[0].shades() == [2]


def test_an_engine_that_raises_for_one_video_answers_the_others(film: MakeFilm, engine: TrackingFake) -> None:
    one, two = film("one"), film("two")
    for each in (one, two):
        each.prompt(0).outcome()
    held = hold(one, engine, 1)
    engine.bad_shade = 9
    good, bad = one.track(5), two.track(9)
    await_encoded(one)
    engine.track_gate.set()
    assert held.shades() == [1]
    assert isinstance(bad.error(), InternalError)
    assert good.shades() == [5]


def test_rows_of_several_videos_are_tracked_in_one_call(film: MakeFilm, engine: TrackingFake) -> None:
    films = [film(f"{number}") for number in range(4)]
    for each in films:
        each.prompt(0).outcome()
    held = hold(films[0], engine, 100)
    boxes = [each.track(101 + number) for number, each in enumerate(films)]
    await_encoded(films[0])
    engine.track_gate.set()
    assert held.shades() == [100]
    assert [box.shades() for box in boxes] == [[101], [102], [103], [104]]
    assert len(engine.calls[-1]) == 4


def test_frames_are_encoded_ahead_while_an_earlier_one_is_tracked(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    held = hold(one, engine, 1)
    boxes = [one.track(frame) for frame in range(10, 30)]
    eventually(lambda: engine.encodes == 6, "frames are encoded ahead", pause=0.001)  # a few, not all
    engine.track_gate.set()
    assert held.shades() == [1]
    assert [box.shades() for box in boxes] == [[frame] for frame in range(10, 30)]
    assert engine.encodes == 22


def test_a_frame_that_cannot_be_used_fails_in_its_turn(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    wrong, behind = one.track(5, picture=picture(9, 8)), one.track(6)
    error = wrong.error()
    assert isinstance(error, InvalidInput)
    assert "frame 5 has 9 x 8 pixels and the frames before it 8 x 8" in str(error)
    assert "step 2 (frame 5) before it failed" in str(behind.error())
    engine.unreadable = 5
    one.next = 2
    assert "damaged" in str(one.track(5).error())
    assert "step 2 (frame 5) before it failed: send that one again" in str(
        one.track(6).error()
    )  # it came too late to wait


def test_prompts_are_checked_against_the_frame(film: MakeFilm, engine: TrackingFake) -> None:
    one = film(session=Limits(objects=1))
    cases = [
        ({"points": [[9, 1]]}, "lies outside the image of 8 x 8"),
        ({"box": [0, 0, 9, 9]}, "reaches outside"),
        ({"mask": {"size": [8, 9], "counts": [72]}}, "the mask has 9 x 8 pixels and the frame 8 x 8"),
        ({"mask": {"size": [8, 8], "counts": [63]}}, "does not cover"),
    ]
    for fields, said in cases:
        error = one.send(Do.PROMPT, step=1, frame=0, object=1, **fields).error()
        assert isinstance(error, InvalidInput)
        assert said in str(error)
    assert engine.calls == []
    one.next = 1
    mask = np.zeros((8, 8), np.bool_)
    mask[2:4] = True
    assert one.prompt(0, 1, mask=rle(mask)).shades() == [0]
    refusal = one.prompt(0, 2).error()
    assert isinstance(refusal, TooManyObjects)
    assert "remove one first" in str(refusal)


def test_a_cancel_drops_what_waits_and_those_behind_it(film: MakeFilm, engine: TrackingFake) -> None:
    one, two = film("one"), film("two")
    one.prompt(0).outcome()
    two.prompt(0).outcome()
    running = hold(one, engine, 1)
    waiting, other = [one.track(2), one.track(3)], two.track(4)
    assert one.scheduler.cancel_session("one") == 2
    assert all(isinstance(box.error(), Cancelled) for box in waiting)
    engine.track_gate.set()
    assert running.shades() == [1]
    assert other.shades() == [4]
    assert one.send(Do.TRACK, step=3, frame=2).shades() == [2]


def test_what_comes_behind_a_cancelled_step_is_told_soon(film: MakeFilm, engine: TrackingFake) -> None:
    one = film(gap_seconds=1000.0)
    one.prompt(0).outcome()
    running = hold(one, engine, 1)
    one.track(2)
    assert one.scheduler.cancel_session("film") == 1
    behind = one.track(3)
    engine.track_gate.set()
    assert running.shades() == [1]
    assert "because step 3 (frame 2) before it was cancelled: send that one again first" in str(behind.error())
    again = [one.send(Do.TRACK, step=step, frame=step - 1) for step in (3, 4)]
    assert [box.shades() for box in again] == [[2], [3]]


def test_a_client_that_hung_up_is_not_waited_for(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    hold(one, engine, 1)
    gone = one.track(2)
    gone.gone = True
    behind = one.track(3)
    engine.track_gate.set()
    assert isinstance(gone.error(), Cancelled)
    assert "before it failed" in str(behind.error())


def test_clicks_pass_beside_tracking(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    tracked = hold(one, engine, 1)
    assert expect_answer(click(one.scheduler, Inbox(), embedding()))
    assert tracked.empty
    engine.track_gate.set()
    assert tracked.shades() == [1]


def test_a_session_goes_on_from_its_state(film: MakeFilm, engine: TrackingFake) -> None:
    one = film("one")
    one.prompt(0, 7).outcome()
    for frame in range(1, 5):
        one.track(frame).outcome()
    state = one.track(5, state=True).outcome().state_bytes()
    assert state is not None
    two = Film(one.scheduler, "two")
    two.next = 60
    opened = two.open(restore=state)
    assert opened.known == (7,)
    one.track(6).outcome()
    two.track(6).outcome()
    assert engine.calls[-1] == engine.calls[-2] == [(6, 6)]
    assert two.next == 62
    assert one.send(Do.STATE).outcome().state_bytes() is not None


def test_a_wrong_state_opens_nothing(film: MakeFilm) -> None:
    one = film("one")
    two = Film(one.scheduler, "two")
    assert "not written by triton-sam" in str(two.send(Do.OPEN, restore=b"nonsense").error())
    assert isinstance(refused(lambda: two.track(2)), SessionExpired)
    two.next = 0
    assert two.open(width=8, height=8).known == ()


def test_a_state_replaces_a_session_of_its_name(film: MakeFilm, engine: TrackingFake) -> None:
    one = film("one")
    one.prompt(0, 7).outcome()
    state = one.track(1, state=True).outcome().state_bytes()
    waiting = one.send(Do.TRACK, step=9, frame=9)
    one.next = 3
    one.open(restore=state)
    assert isinstance(waiting.error(), Cancelled)
    assert one.track(2).shades() == [2]


def test_a_closed_session_is_gone(film: MakeFilm, counts: Counts) -> None:
    one = film()
    one.prompt(0).outcome()
    one.send(Do.CLOSE).outcome()
    error = refused(lambda: one.track(1))
    assert isinstance(error, SessionExpired)
    assert "'film' is unknown here or has expired" in str(error)


def test_a_scheduler_that_closes_answers_everybody(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    one.prompt(0).outcome()
    missing = one.send(Do.TRACK, step=7, frame=7)
    one.scheduler.close()
    assert isinstance(missing.error(), Unavailable)
    assert isinstance(refused(lambda: one.track(1)), Unavailable)


def test_results_that_are_not_finite_are_an_error(film: MakeFilm, engine: TrackingFake) -> None:
    one = film()
    engine.score = float("nan")
    error = one.prompt(0).error()
    assert isinstance(error, InternalError)
    assert "not finite" in str(error)


def test_waiting_steps_are_bounded(film: MakeFilm, engine: TrackingFake) -> None:
    one = film(waiting=3)
    boxes = [one.send(Do.TRACK, step=step, frame=step) for step in (5, 6, 7)]
    assert isinstance(refused(lambda: one.send(Do.TRACK, step=8, frame=8)), QueueFull)
    assert all(box.empty for box in boxes)


def test_masks_of_too_many_pixels_are_refused(film: MakeFilm) -> None:
    one = film(answer_pixels=64)
    one.prompt(0, 1).outcome()
    assert type(one.prompt(0, 2).error()) is TooManyObjects


def test_a_first_mask_of_too_many_pixels_is_refused(film: MakeFilm) -> None:
    assert type(film(answer_pixels=63).prompt(0, 1).error()) is TooLarge


def test_states_pack(film: MakeFilm) -> None:
    one = film()
    one.prompt(0).outcome()
    notes = one.send(Do.STATE).outcome().state
    assert isinstance(notes, StateNotes)
    one.track(0).outcome()  # changes nothing of it
    state = notes.state()
    assert state.objects[0].frames[0].pending
    assert pack_state(state)
