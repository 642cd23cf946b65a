"""A single user's clicks are decoded at once; clicks of several users are queued and batched."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence

import pytest
from PIL import Image

from tests.unit.backend.scheduler_helpers import (
    PATIENCE,
    Inbox,
    MakeScheduler,
    Preparing,
    embedding,
    expect_answer,
    prompt,
    send,
    wait_for,
)
from tests.waiting import eventually
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.backend.single_user import RETURN_SECONDS, SHARED_SECONDS, TURNAROUND_SECONDS, SingleUserDetector
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.errors import InternalError


def test_one_user_is_alone_from_the_first_click_on_and_on_every_new_image() -> None:
    detector = SingleUserDetector()
    times = itertools.count()
    for image in "ABC":
        for _ in range(10):
            assert detector.click(("me", image), next(times) * 0.002)


def test_alternating_users_share_the_server_until_they_are_gone() -> None:
    detector = SingleUserDetector()
    first_round = [detector.click(("user", number), number * 0.001) for number in range(4)]
    second_round = [detector.click(("user", number), 0.004 + number * 0.001) for number in range(4)]
    assert all(first_round), "new ones may be one user who opens images"
    assert not any(second_round)
    assert not detector.click(("user", 3), 0.007 + SHARED_SECONDS / 2)
    assert detector.click(("user", 3), 0.007 + SHARED_SECONDS)


def test_users_that_are_served_slowly_still_share_the_server() -> None:
    detector = SingleUserDetector()
    users, each = 32, RETURN_SECONDS / 40
    alone = [detector.click(number % users, number * each) for number in range(3 * users)]
    assert not any(alone[users:])


def test_a_click_that_waited_during_a_response_is_a_second_client() -> None:
    detector = SingleUserDetector()
    assert detector.click("same", 1.0)
    detector.answered(1.001)
    assert not detector.click("same", 1.001 + TURNAROUND_SECONDS / 2)
    later = 1.002 + SHARED_SECONDS + TURNAROUND_SECONDS
    assert detector.click("same", later)
    detector.answered(later + 0.001)
    assert detector.click("same", later + 0.001 + 2 * TURNAROUND_SECONDS), "a client that is quick, and still alone"


def test_the_number_of_remembered_clients_is_bounded() -> None:
    detector = SingleUserDetector()
    for number in range(10_000):
        detector.click(number, number * 1e-6)
    assert len(detector._last_click) <= 256


@pytest.fixture
def engine() -> Preparing:
    engine = Preparing()
    engine.capacity = dataclasses.replace(engine.capacity, answers_at_once=True)
    return engine


def lone_click(scheduler: Scheduler) -> Inbox:
    """A click whose response only has to be assembled."""
    inbox = Inbox()
    scheduler.submit_click(
        SegmentJob(inbox, dataclasses.replace(prompt(7.0), format="bits"), "key", embedding=embedding())
    )
    return inbox


def test_a_lone_click_has_its_answer_when_it_has_been_submitted(make: MakeScheduler, engine: Preparing) -> None:
    inbox = lone_click(make(rows=8))
    assert not inbox.empty, "nobody had to be woken for it"
    assert expect_answer(inbox)[0].logits[0, 0, 0] == 7.0  # type: ignore[index]


def test_a_lone_click_that_fails_is_answered_too(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.failure = RuntimeError("gone")
    answer = lone_click(scheduler).get()
    assert isinstance(answer, InternalError)
    assert "decoding failed" in str(answer)
    engine.failure = None
    expect_answer(lone_click(scheduler))


def test_a_click_beside_another_one_waits_for_the_worker(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.decode_gate.clear()
    two = prompt(1.0)
    two = dataclasses.replace(two, objects=two.objects * 2)
    first = Inbox()
    scheduler.submit_click(SegmentJob(first, two, "other", embedding=embedding()))  # never decoded by who brings it
    assert engine.decode_arrived.wait(PATIENCE)
    second = lone_click(scheduler)
    assert second.empty
    engine.decode_gate.set()
    assert len(expect_answer(first)) == 2
    expect_answer(second)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_lone_click_after_a_batch_is_decoded_at_once_again(
    make: MakeScheduler, engine: Preparing, overlaps: bool
) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, overlaps=overlaps)
    scheduler = make(rows=8)
    batch = Inbox()
    scheduler.submit_click(SegmentJob(batch, prompt(1.0, objects=2), "key", embedding=embedding()))
    expect_answer(batch)
    eventually(lambda: not scheduler._decodes._decoding, "the worker waits again")
    assert not lone_click(scheduler).empty


def test_light_answers_of_a_batch_arrive_each_at_its_own(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.decode_gate.clear()
    two = prompt(1.0)
    first = Inbox()
    held = dataclasses.replace(two, objects=two.objects * 2)
    scheduler.submit_click(SegmentJob(first, held, "other", embedding=embedding()))
    assert engine.decode_arrived.wait(PATIENCE)
    inboxes = [Inbox() for _ in range(7)]
    for number, inbox in enumerate(inboxes):
        light = dataclasses.replace(prompt(float(number)), format="bits")
        scheduler.submit_click(SegmentJob(inbox, light, "key", embedding=embedding()))
    engine.decode_gate.set()
    for number, inbox in enumerate(inboxes):
        (answer,) = expect_answer(inbox)
        assert answer.logits is not None
        assert answer.logits[0, 0, 0] == number


def test_a_lone_image_is_encoded_by_the_thread_that_prepared_it(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    names: list[str] = []
    encode = engine.encode

    def named(prepared: Sequence[Image.Image]) -> list[Embedding]:
        names.append(threading.current_thread().name)
        return encode(prepared)

    engine.encode = named  # type: ignore[method-assign]
    assert expect_answer(send(scheduler, 0)) == []
    assert expect_answer(send(scheduler, 1)) == []
    assert all(name.startswith("prepare") for name in names)


def test_images_beside_a_lone_one_are_collected_while_it_is_encoded(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.encode_gate.clear()
    inboxes = [send(scheduler, 0)]
    assert engine.encode_arrived.wait(PATIENCE)
    inboxes += [send(scheduler, number) for number in range(1, 5)]
    wait_for(engine, 5)
    engine.encode_gate.set()
    for inbox in inboxes:
        assert expect_answer(inbox) == []
    assert engine.encodes == 5
    assert engine.encode_batches[0] == 1
    assert max(engine.encode_batches) >= 2, "one at a time would be five runs"


def test_it_stops_while_a_lone_image_is_encoded(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.encode_gate.clear()
    inbox = send(scheduler, 0)
    assert engine.encode_arrived.wait(PATIENCE)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    engine.encode_gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert expect_answer(inbox) == []


def test_a_failing_click_does_not_fail_its_batch(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    decode = engine.decode

    def choosy(rows: Sequence[Row]) -> list[Decoded]:
        if any(row.prompt.points[0, 0] == 13 for row in rows):
            raise RuntimeError("a number left its range")
        return decode(rows)

    engine.decode_gate.clear()
    held = prompt(1.0)
    first = Inbox()
    scheduler.submit_click(
        SegmentJob(first, dataclasses.replace(held, objects=held.objects * 2), "a", embedding=embedding())
    )
    assert engine.decode_arrived.wait(PATIENCE)
    engine.decode = choosy  # type: ignore[method-assign]
    inboxes = {x: Inbox() for x in (12.0, 13.0, 14.0)}
    for x, inbox in inboxes.items():
        scheduler.submit_click(SegmentJob(inbox, prompt(x), "key", embedding=embedding()))
    engine.decode_gate.set()
    assert isinstance(inboxes[13.0].get(), InternalError)
    for x in (12.0, 14.0):
        assert expect_answer(inboxes[x])[0].logits[0, 0, 0] == x  # type: ignore[index]
