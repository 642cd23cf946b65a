"""The scheduler with an engine that batches: batches of images and of rows, and images prepared ahead."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from tests.unit.backend.scheduler_helpers import (
    PATIENCE,
    Counts,
    Inbox,
    MakeScheduler,
    Preparing,
    click,
    embedding,
    expect_answer,
    image,
    prompt,
    send,
    wait_for,
)
from triton_sam.backend.jobs import SegmentJob
from triton_sam.errors import Cancelled, InternalError, InvalidInput, QueueFull, Unavailable


@pytest.fixture
def engine() -> Preparing:
    return Preparing()


def test_images_that_are_ready_are_encoded_together(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.encode_gate.clear()
    inboxes = [send(scheduler, 0)]
    assert engine.encode_arrived.wait(PATIENCE)
    inboxes += [send(scheduler, number) for number in range(1, 7)]
    wait_for(engine, 7)
    engine.encode_gate.set()
    for inbox in inboxes:
        assert expect_answer(inbox) == []
    assert engine.encodes == 7
    assert engine.encode_batches[0] == 1, "who comes alone does not wait"
    assert max(engine.encode_batches) == 4, "no more than the engine likes"
    assert len(engine.encode_batches) <= 4


def test_a_lone_image_waits_for_nobody(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(window=60.0)
    expect_answer(send(scheduler, 0))
    assert engine.encode_batches == [1]


def test_images_on_their_way_are_waited_for(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(window=60.0)
    engine.prepare_gate.clear()
    inboxes = [send(scheduler, number) for number in range(3)]
    engine.prepare_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.encode_batches == [2, 1], "all three were there; the engine knows batches of two"


def test_no_more_than_so_many_are_ahead(make: MakeScheduler, engine: Preparing) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, ahead=2)
    scheduler = make(encodes=2)
    engine.encode_gate.clear()
    inboxes = [send(scheduler, 0)]
    assert engine.encode_arrived.wait(PATIENCE)
    inboxes += [send(scheduler, 1)]
    wait_for(engine, 2)
    inboxes += [send(scheduler, number) for number in (2, 3)]
    refused = send(scheduler, 4)
    assert isinstance(refused.get(), QueueFull), "two wait in the queue, and the others are not prepared yet"
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.encodes == 4


def test_an_image_that_is_none_harms_only_itself(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(window=60.0)
    engine.prepare_gate.clear()
    good = [send(scheduler, number) for number in range(2)]
    engine.bad = image(9)
    bad = Inbox()
    scheduler.submit_image(SegmentJob(bad, None, "bad"), engine.bad)
    engine.prepare_gate.set()
    assert isinstance(bad.get(), InvalidInput)
    for inbox in good:
        expect_answer(inbox)


def test_an_encoder_that_raises_fails_its_batch_and_goes_on(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(window=60.0)
    engine.failure = RuntimeError("broken")
    engine.prepare_gate.clear()
    inboxes = [send(scheduler, number) for number in range(2)]
    engine.prepare_gate.set()
    assert all(isinstance(inbox.get(), InternalError) for inbox in inboxes)
    engine.failure = None
    expect_answer(send(scheduler, 5))


def test_what_was_superseded_after_it_was_prepared_is_not_encoded(
    make: MakeScheduler,
    engine: Preparing,
    counts: Counts,
) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    first = send(scheduler, 0)
    assert engine.encode_arrived.wait(PATIENCE)
    superseded = send(scheduler, 1, session="a", latest_wins=True)
    wait_for(engine, 2)
    last = send(scheduler, 2, session="a", latest_wins=True)
    assert isinstance(superseded.get(), Cancelled)
    engine.encode_gate.set()
    expect_answer(first)
    expect_answer(last)
    scheduler.close()
    assert engine.encodes == 2
    assert counts["cancelled"] == 1


def test_clicks_on_several_images_are_one_batch(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make()
    engine.decode_gate.clear()
    first = click(scheduler, Inbox(), embedding())
    assert engine.decode_arrived.wait(PATIENCE)
    others = [click(scheduler, Inbox(), embedding(), x=float(number)) for number in range(2, 8)]
    engine.decode_gate.set()
    expect_answer(first)
    for number, inbox in enumerate(others, 2):
        (decoded,) = expect_answer(inbox)
        assert decoded.logits is not None
        assert float(decoded.logits[0, 0, 0]) == number, "somebody else's answer"
    assert engine.batches == [1, 6]


def test_a_batch_has_no_more_rows_than_the_engine_likes(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.decode_gate.clear()
    first = click(scheduler, Inbox(), embedding())
    assert engine.decode_arrived.wait(PATIENCE)
    inboxes = [Inbox() for _ in range(4)]
    for inbox in inboxes:
        scheduler.submit_click(SegmentJob(inbox, prompt(objects=3), "key", embedding=embedding()))
    engine.decode_gate.set()
    for inbox in (first, *inboxes):
        expect_answer(inbox)
    assert engine.batches == [1, 6, 6]


def test_a_request_with_more_objects_than_a_batch_is_alone(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=8)
    engine.decode_gate.clear()
    first = click(scheduler, Inbox(), embedding())
    assert engine.decode_arrived.wait(PATIENCE)
    large, small = Inbox(), Inbox()
    scheduler.submit_click(SegmentJob(large, prompt(objects=20), "key", embedding=embedding()))
    scheduler.submit_click(SegmentJob(small, prompt(), "key", embedding=embedding()))
    engine.decode_gate.set()
    assert len(expect_answer(large)) == 20
    expect_answer(small)
    expect_answer(first)
    assert engine.batches == [1, 20, 1]


def test_closing_finishes_what_is_prepared(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    inboxes = [send(scheduler, number) for number in range(6)]
    assert engine.encode_arrived.wait(PATIENCE)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_gpu_out_of_memory_is_reported_as_unavailable(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make()
    engine.failure = Unavailable("the GPU's memory is full")
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), Unavailable)


def test_a_request_for_an_image_that_was_just_dropped_is_answered(make: MakeScheduler, engine: Preparing) -> None:
    """Another request for the same image may arrive between the last cancellation and the task's end."""
    late = Inbox()

    class Leaving(Inbox):
        def flush(self) -> None: ...

        def is_cancelled(self) -> bool:
            # The scheduler calls this without its lock: now the other request arrives.
            if late.empty:
                scheduler.submit_image(SegmentJob(late, None, "same"), image())
            return True

    scheduler = make(patience=0)
    leaving = Leaving()
    scheduler.submit_image(SegmentJob(leaving, None, "same"), image())
    assert isinstance(leaving.get(), Cancelled)
    assert expect_answer(late) == []


@pytest.mark.parametrize(("waiting", "begun"), [(4, [1, 2]), (1, [1])])
def test_a_full_batch_is_begun_while_another_one_is_decoded(
    make: MakeScheduler, engine: Preparing, waiting: int, begun: list[int]
) -> None:
    scheduler = make(rows=2)
    engine.capacity = dataclasses.replace(engine.capacity, overlaps=True, mixes_images=True)
    engine.begin_gate.clear()
    engine.decode_gate.clear()
    shared = embedding()
    inboxes = [click(scheduler, Inbox(), shared)]
    assert engine.begin_arrived.wait(PATIENCE)
    inboxes += [click(scheduler, Inbox(), shared) for _ in range(waiting)]
    engine.begin_gate.set()
    assert engine.decode_arrived.wait(PATIENCE), "the first one is waited for"
    assert engine.begun == begun, "only a full batch is taken early: the other one may still grow"
    engine.decode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert sum(engine.begun) == 1 + waiting


def test_each_overlapping_batch_gets_its_own_results(make: MakeScheduler, engine: Preparing) -> None:
    scheduler = make(rows=2)
    engine.capacity = dataclasses.replace(engine.capacity, overlaps=True, mixes_images=True)
    engine.decode_gate.clear()
    inboxes = [click(scheduler, Inbox(), embedding(), x=number) for number in range(9)]
    engine.decode_gate.set()
    for number, inbox in enumerate(inboxes):
        (decoded,) = expect_answer(inbox)
        assert decoded.logits is not None
        assert (decoded.logits == number).all()
