"""Background requests: after people's images and clicks, in chunks, with places of their own."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from tests.unit.backend.scheduler_helpers import (
    PATIENCE,
    Counts,
    GatedEngine,
    Inbox,
    MakeScheduler,
    Preparing,
    click,
    embedding,
    expect_answer,
    hold_decoder,
    image,
    prompt,
    send,
)
from tests.waiting import eventually
from triton_sam.backend import decodes
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.errors import Cancelled, InternalError, QueueFull, Unavailable


class Recorder(GatedEngine):
    """Remembers which images and which prompts it was given, in order, and can hold every call."""

    def __init__(self) -> None:
        super().__init__()
        self.shades: list[int] = []
        self.points: list[list[float]] = []
        self.steps: threading.Semaphore | None = None
        self.bad_point: float | None = None
        self.beside_gate, self.beside_arrived = threading.Event(), threading.Event()

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        self.shades += [picture.getpixel((0, 0))[0] for picture in prepared]  # type: ignore[index]
        return super().encode(prepared)

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        points = [float(row.prompt.points[0, 0]) for row in rows]
        self.points.append(points)
        if self.bad_point in points:
            raise RuntimeError("cannot decode this one")
        if self.steps is not None:
            self.decode_arrived.set()
            assert self.steps.acquire(timeout=PATIENCE)
        return super().decode(rows)

    def decode_beside(self, rows: Sequence[Row]) -> list[Decoded]:
        self.beside_arrived.set()
        assert self.beside_gate.wait(PATIENCE)
        return self.decode(rows)


@pytest.fixture
def engine() -> Recorder:
    return Recorder()


def ask(scheduler: Scheduler, x: float, objects: int = 1, shared: Embedding | None = None, **fields: Any) -> Inbox:
    """A background request on a cached image."""
    inbox = Inbox()
    job = SegmentJob(inbox, prompt(x, objects), "key", embedding=shared or embedding(), background=True, **fields)
    scheduler.submit_click(job)
    return inbox


def hold_encoder(engine: GatedEngine, scheduler: Scheduler) -> Inbox:
    engine.encode_gate.clear()
    first = send(scheduler, 99)
    assert engine.encode_arrived.wait(PATIENCE)
    return first


# -- images ------------------------------------------------------------------------------------------------------


def test_background_images_come_after_those_of_people(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    inboxes = [hold_encoder(engine, scheduler)]
    inboxes += [send(scheduler, number, background=True, session="job") for number in (1, 2)]
    inboxes += [send(scheduler, number, session="person") for number in (3, 4)]
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.shades == [99, 3, 4, 1, 2]


def test_an_image_that_a_person_asks_for_too_moves_to_the_front(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    inboxes = [hold_encoder(engine, scheduler)]
    inboxes += [send(scheduler, number, background=True) for number in (1, 2, 3)]
    inboxes += [send(scheduler, 3), send(scheduler, 3, background=True)]
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.shades == [99, 3, 1, 2]


def test_background_images_take_no_place_from_people(make: MakeScheduler, engine: Recorder, counts: Counts) -> None:
    scheduler = make(encodes=4)
    inboxes = [hold_encoder(engine, scheduler)]
    inboxes += [send(scheduler, number, background=True) for number in (1, 2)]
    refused = send(scheduler, 3, background=True)
    assert isinstance(refused.get(), QueueFull), "half of the places"
    inboxes += [send(scheduler, number) for number in (4, 5, 6, 7)]
    assert isinstance(send(scheduler, 8).get(), QueueFull), "people have filled their own places"
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert (counts["background_rejected"], counts["rejected"]) == (1, 1)
    assert (counts["encodes"], counts["background_encodes"]) == (7, 2)


def test_no_background_image_waits_beside_a_full_queue(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make(encodes=2)
    inboxes = [hold_encoder(engine, scheduler), send(scheduler, 1), send(scheduler, 2)]
    assert isinstance(send(scheduler, 3, background=True).get(), QueueFull)
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)


def test_a_cancelled_session_takes_its_background_images_along(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    first = hold_encoder(engine, scheduler)
    waiting = [send(scheduler, number, background=True, session="job") for number in (1, 2)]
    assert scheduler.cancel_session("job") == 2
    assert all(isinstance(inbox.get(), Cancelled) for inbox in waiting)
    engine.encode_gate.set()
    expect_answer(first)
    scheduler.close()
    assert engine.encodes == 1


def test_an_encode_whose_person_has_gone_is_none_of_the_background(
    make: MakeScheduler, engine: Recorder, counts: Counts
) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    gone = send(scheduler, 1, session="person")
    assert engine.encode_arrived.wait(PATIENCE)
    scheduler.cancel_session("person")
    assert isinstance(gone.get(), Cancelled)
    engine.encode_gate.set()
    scheduler.close()
    assert (counts["encodes"], counts["background_encodes"]) == (1, 0)


def test_images_are_encoded_no_further_ahead_than_they_are_decoded(make: MakeScheduler, engine: Recorder) -> None:
    """Those that wait for the decoder are in memory."""
    scheduler = make()
    hold_decoder(engine, scheduler)
    inboxes = []
    for number in range(8):
        inbox = Inbox()
        scheduler.submit_image(SegmentJob(inbox, prompt(), f"image {number}", background=True), image(number))
        inboxes.append(inbox)
    person = Inbox()
    scheduler.submit_image(SegmentJob(person, None, "a person's"), image(9))
    expect_answer(person)
    assert engine.encodes <= 6
    engine.decode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.encodes == 9


def test_a_person_on_a_gpu_gets_a_batch_without_background_images(make: MakeScheduler) -> None:
    engine = Preparing()
    scheduler = Scheduler(engine, EmbeddingCache(10**6), Counts(), make()._limits)
    engine.encode_gate.clear()
    inboxes = [send(scheduler, 0, background=True)]
    assert engine.encode_arrived.wait(PATIENCE)
    inboxes += [send(scheduler, number, background=True) for number in range(1, 5)]
    for _ in range(5):
        assert engine.prepared.acquire(timeout=PATIENCE)
    person = send(scheduler, 9)
    assert engine.prepared.acquire(timeout=PATIENCE), "room is left for it although the job has images ahead"
    eventually(lambda: len(scheduler._encodes._ready) == 5, "all are ready")
    engine.encode_gate.set()
    for inbox in (person, *inboxes):
        expect_answer(inbox)
    scheduler.close()
    assert engine.encode_batches == [1, 1, 4]


# -- objects -----------------------------------------------------------------------------------------------------


def test_a_click_waits_for_one_chunk_of_a_request_with_many_objects(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    engine.steps = threading.Semaphore(0)
    job = ask(scheduler, 1.0, objects=5)
    assert engine.decode_arrived.wait(PATIENCE)
    clicked = click(scheduler, Inbox(), embedding(), 7.0)
    engine.steps.release(10)
    expect_answer(clicked)
    assert [answer.logits[0, 0, 0] for answer in expect_answer(job)] == [1.0] * 5
    assert engine.points == [[1.0, 1.0], [7.0], [1.0, 1.0], [1.0]]


def test_a_click_waits_for_nothing_that_is_decoded_beside_it(make: MakeScheduler, engine: Recorder) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, decodes_beside=True)
    scheduler = make()
    engine.beside_gate.clear()
    job = ask(scheduler, 1.0, objects=3)
    assert engine.beside_arrived.wait(PATIENCE)
    expect_answer(click(scheduler, Inbox(), embedding(), 7.0))
    assert job.empty
    engine.beside_gate.set()
    assert len(expect_answer(job)) == 3
    assert engine.points == [[7.0], [1.0, 1.0], [1.0]]


def test_work_of_a_job_is_counted_apart(make: MakeScheduler, counts: Counts) -> None:
    scheduler = make()
    expect_answer(ask(scheduler, 1.0, objects=3))
    expect_answer(click(scheduler, Inbox(), embedding()))
    scheduler.close()
    assert (counts["decodes"], counts["background_decodes"]) == (4, 3)
    assert (counts["turns"], counts["background_turns"]) == (1, 1)


def test_sessions_of_jobs_take_turns(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    engine.steps = threading.Semaphore(0)
    inboxes = [ask(scheduler, 0.0)]
    assert engine.decode_arrived.wait(PATIENCE)
    inboxes += [ask(scheduler, 1.0 + number, session="long", objects=2) for number in range(3)]
    inboxes += [ask(scheduler, 9.0, session="short", objects=2)]
    engine.steps.release(10)
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.points.index([9.0, 9.0]) <= 2


def test_rows_of_several_requests_fill_a_batch(make: MakeScheduler, engine: Recorder) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, mixes_images=True, on_cpu=False)
    scheduler = make(rows=8)
    engine.steps = threading.Semaphore(0)
    inboxes = [ask(scheduler, 0.0)]
    assert engine.decode_arrived.wait(PATIENCE)
    inboxes += [ask(scheduler, float(number), objects=3) for number in range(1, 5)]
    engine.steps.release(10)
    for number, inbox in enumerate(inboxes):
        assert {float(answer.logits[0, 0, 0]) for answer in expect_answer(inbox)} == {number}
    assert [len(points) for points in engine.points] == [1, 8, 4]


def test_an_engine_that_takes_one_image_gets_one(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    engine.steps = threading.Semaphore(0)
    inboxes = [ask(scheduler, 0.0)]
    assert engine.decode_arrived.wait(PATIENCE)
    shared = embedding()
    inboxes += [ask(scheduler, 1.0, shared=shared), ask(scheduler, 2.0), ask(scheduler, 3.0, shared=shared)]
    engine.steps.release(10)
    for inbox in inboxes:
        expect_answer(inbox)
    assert sorted(engine.points) == [[0.0], [1.0, 3.0], [2.0]]


def test_a_crowd_does_not_stop_a_job(make: MakeScheduler, engine: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decodes, "LONGEST_WAIT", 0.0)
    scheduler = make(rows=1)
    hold_decoder(engine, scheduler)
    clicks = [click(scheduler, Inbox(), embedding(), 7.0) for _ in range(20)]
    job = ask(scheduler, 1.0)
    eventually(lambda: bool(scheduler._decodes._background), "it waits")
    time.sleep(0.001)  # more than the longest wait
    engine.decode_gate.set()
    for inbox in (job, *clicks):
        expect_answer(inbox)
    assert engine.points.index([1.0]) <= 2


def test_background_requests_take_no_place_from_clicks(make: MakeScheduler, engine: Recorder, counts: Counts) -> None:
    scheduler = make(clicks=4, rows=1)
    inboxes = [hold_decoder(engine, scheduler)]
    inboxes += [ask(scheduler, 1.0) for _ in range(2)]
    assert isinstance(ask(scheduler, 1.0).get(), QueueFull), "half of the places"
    inboxes += [click(scheduler, Inbox(), embedding()) for _ in range(4)]
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), QueueFull)
    assert (scheduler.unanswered, scheduler.unanswered_of_people) == (7, 5)
    engine.decode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    eventually(lambda: scheduler.unanswered == scheduler.unanswered_of_people == 0, "all are answered")
    assert (counts["background_rejected"], counts["rejected"]) == (1, 1)


def test_what_is_cancelled_between_two_chunks_ends_there(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    engine.steps = threading.Semaphore(0)
    begun, waiting = ask(scheduler, 1.0, objects=9, session="job"), ask(scheduler, 2.0, session="job")
    assert engine.decode_arrived.wait(PATIENCE)
    assert scheduler.cancel_session("job") == 2
    for inbox in (begun, waiting):
        assert isinstance(inbox.get(), Cancelled)
    other = ask(scheduler, 3.0)
    engine.steps.release(10)
    expect_answer(other)
    assert engine.points == [[1.0, 1.0], [3.0]]


def test_nothing_is_decoded_for_a_client_that_is_gone(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make(patience=0)
    inbox = Inbox(gone=True)
    scheduler.submit_click(SegmentJob(inbox, prompt(), "key", embedding=embedding(), background=True))
    assert isinstance(inbox.get(), Cancelled)
    assert engine.points == []


def test_it_may_wait_longer_than_a_click(make: MakeScheduler) -> None:
    scheduler = make(seconds=30, background_seconds=300)
    now = time.perf_counter()
    expect_answer(ask(scheduler, 1.0, received=now - 60))
    assert isinstance(ask(scheduler, 1.0, received=now - 600).get(), Unavailable)


def test_a_request_that_cannot_be_decoded_harms_no_other(make: MakeScheduler, engine: Recorder) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, mixes_images=True, on_cpu=False)
    scheduler = make()
    engine.bad_point = 2.0
    hold_decoder(engine, scheduler)
    inboxes = [ask(scheduler, float(number)) for number in (1, 2, 3)]
    engine.decode_gate.set()
    expect_answer(inboxes[0])
    assert isinstance(inboxes[1].get(), InternalError)
    expect_answer(inboxes[2])
    assert scheduler.alive


def test_a_reply_that_raises_stops_nobody(make: MakeScheduler) -> None:
    class Hostile(Inbox):
        def is_cancelled(self) -> bool:
            raise RuntimeError("the pipe is gone")

    scheduler = make(patience=0)
    inbox = Hostile()
    scheduler.submit_click(SegmentJob(inbox, prompt(), "key", embedding=embedding(), background=True))
    assert isinstance(inbox.get(), InternalError)
    expect_answer(ask(scheduler, 1.0))


def test_closing_finishes_it(make: MakeScheduler, engine: Recorder) -> None:
    scheduler = make()
    first = hold_encoder(engine, scheduler)
    inboxes = []
    for number in range(5):
        inbox = Inbox()
        scheduler.submit_image(SegmentJob(inbox, prompt(objects=3), f"image {number}", background=True), image(number))
        inboxes.append(inbox)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    engine.encode_gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    for inbox in (first, *inboxes):
        expect_answer(inbox)


# -- the cache ---------------------------------------------------------------------------------------------------


def test_a_job_does_not_drive_out_the_images_of_people() -> None:
    size = embedding().nbytes
    cache = EmbeddingCache(8 * size)
    for number in range(6):
        cache.put(f"person {number}", embedding())
    for number in range(20):
        cache.put(f"job {number}", embedding(), background=True)
    assert all(cache.get(f"person {number}") is not None for number in range(6))
    assert [number for number in range(20) if cache.get(f"job {number}", background=True)] == [18, 19]
    cache.get("job 18")  # a person's from now on
    for number in range(20, 30):
        cache.put(f"job {number}", embedding(), background=True)
    assert cache.get("job 18") is not None
    assert cache.bytes == len(cache) * size
