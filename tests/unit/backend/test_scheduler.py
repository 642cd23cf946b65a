"""The scheduler: order, batching, cancellation, refusal, and a response for every request."""

from __future__ import annotations

import gc
import io
import queue
import threading
import time
import weakref

import pytest
from PIL import Image

from tests.unit.backend.scheduler_helpers import (
    PATIENCE,
    Counts,
    GatedEngine,
    Inbox,
    MakeScheduler,
    click,
    embedding,
    expect_answer,
    hold_decoder,
    image,
    prompt,
)
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import SegmentJob
from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Decoded
from triton_sam.errors import Cancelled, InternalError, InvalidInput, Unavailable


def test_a_click_is_answered_with_its_own_result(make: MakeScheduler) -> None:
    assert expect_answer(click(make(), Inbox(), embedding(), 7.0))[0].logits[0, 0, 0] == 7.0


def test_equal_images_are_encoded_once(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    inboxes = [Inbox() for _ in range(5)]
    for inbox in inboxes:
        scheduler.submit_image(SegmentJob(inbox, None, "same"), image())
    engine.encode_gate.set()
    for inbox in inboxes:
        assert expect_answer(inbox) == []
    late = Inbox()
    scheduler.submit_image(SegmentJob(late, prompt(3.0), "same"), image())
    assert len(expect_answer(late)) == 1
    assert engine.encodes == 1


def test_clicks_of_one_image_are_decoded_in_one_batch_and_not_mixed_up(
    make: MakeScheduler, engine: GatedEngine
) -> None:
    scheduler = make(rows=8)
    hold_decoder(engine, scheduler)
    shared = embedding()
    inboxes = [click(scheduler, Inbox(), shared, float(x)) for x in range(6)]
    engine.decode_gate.set()
    for x, inbox in enumerate(inboxes):
        assert expect_answer(inbox)[0].logits[0, 0, 0] == x
    assert engine.batches == [1, 6]


def test_clicks_of_different_images_are_never_in_one_batch(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    inboxes = [click(scheduler, Inbox(), embedding(), float(x)) for x in range(3)]
    engine.decode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.batches == [1, 1, 1, 1]


def test_a_click_does_not_wait_for_an_encode(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    encoding = Inbox()
    scheduler.submit_image(SegmentJob(encoding, None, "slow"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    expect_answer(click(scheduler, Inbox(), embedding()))
    assert encoding.empty
    assert scheduler.encode_seconds > 0


def test_latest_wins_cancels_what_its_session_has_waiting(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    shared = embedding()
    hovers = [click(scheduler, Inbox(), shared, float(x), session="a", latest_wins=True) for x in range(20)]
    other = click(scheduler, Inbox(), shared, session="b", latest_wins=True)
    for superseded in hovers[:-1]:
        assert isinstance(superseded.get(), Cancelled)
    engine.decode_gate.set()
    assert expect_answer(hovers[-1])[0].logits[0, 0, 0] == 19
    expect_answer(other)
    assert counts["cancelled"] == 19
    assert sum(engine.batches) == 3, "superseded clicks must cost nothing"


def test_cancelling_a_session_drops_its_clicks_and_its_encode(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    engine.encode_gate.clear()
    scheduler.submit_image(SegmentJob(Inbox(), None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    waiting = Inbox()
    scheduler.submit_image(SegmentJob(waiting, None, "unwanted", session="a"), image(1))
    clicked = click(scheduler, Inbox(), embedding(), session="a")
    stranger = click(scheduler, Inbox(), embedding(), session="b")
    assert scheduler.cancel_session("a") == 2
    assert isinstance(waiting.get(), Cancelled)
    assert isinstance(clicked.get(), Cancelled)
    engine.encode_gate.set()
    engine.decode_gate.set()
    expect_answer(stranger)
    scheduler.close()
    assert engine.encodes == 1, "nobody waited for the second image any more"
    assert counts["cancelled"] == 2


def test_an_image_that_another_session_waits_for_is_still_encoded(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    scheduler.submit_image(SegmentJob(Inbox(), None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    mine, yours = Inbox(), Inbox()
    scheduler.submit_image(SegmentJob(mine, None, "shared", session="a"), image(1))
    scheduler.submit_image(SegmentJob(yours, None, "shared", session="b"), image(1))
    assert scheduler.cancel_session("a") == 1
    engine.encode_gate.set()
    assert expect_answer(yours) == []
    assert isinstance(mine.get(), Cancelled)


def test_a_client_that_went_away_costs_no_decode(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(patience=0)
    assert isinstance(click(scheduler, Inbox(gone=True), embedding()).get(), Cancelled)
    gone = Inbox(gone=True)
    scheduler.submit_image(SegmentJob(gone, None, "key"), image())
    assert isinstance(gone.get(), Cancelled)
    scheduler.close()
    assert engine.encodes == 0
    assert engine.batches == []
    assert counts["cancelled"] == 2


def test_too_many_clicks_are_refused_at_once(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(clicks=2, rows=1)
    held = hold_decoder(engine, scheduler)
    accepted = [click(scheduler, Inbox(), embedding()) for _ in range(2)]
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), Unavailable)
    assert counts["rejected"] == 1
    engine.decode_gate.set()
    for inbox in (held, *accepted):
        expect_answer(inbox)
    expect_answer(click(scheduler, Inbox(), embedding()))


def test_too_many_images_are_refused_at_once(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(encodes=1, clicks=3, rows=1)
    engine.encode_gate.clear()
    running, waiting, refused, joined, beyond = (Inbox() for _ in range(5))
    scheduler.submit_image(SegmentJob(running, None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    scheduler.submit_image(SegmentJob(waiting, None, "waiting"), image(1))
    scheduler.submit_image(SegmentJob(refused, None, "too many"), image(2))
    assert isinstance(refused.get(), Unavailable)
    scheduler.submit_image(SegmentJob(joined, prompt(), "waiting"), image(1))
    assert joined.empty, "joining an encode that waits already takes no place in its queue"
    scheduler.submit_image(SegmentJob(Inbox(), prompt(), "waiting"), image(1))
    scheduler.submit_image(SegmentJob(beyond, prompt(), "waiting"), image(1))
    assert isinstance(beyond.get(), Unavailable), "but those who wait for one image are bounded too"
    assert counts["rejected"] == 2
    engine.encode_gate.set()
    for inbox in (running, waiting, joined):
        expect_answer(inbox)


def test_a_request_that_waited_too_long_is_refused_and_not_computed(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make(seconds=30)
    late_click, late_image = Inbox(), Inbox()
    long_ago = time.perf_counter() - 60
    scheduler.submit_click(SegmentJob(late_click, prompt(), "key", embedding=embedding(), received=long_ago))
    scheduler.submit_image(SegmentJob(late_image, None, "key", received=long_ago), image())
    assert isinstance(late_click.get(), Unavailable)
    assert isinstance(late_image.get(), Unavailable)
    expect_answer(click(scheduler, Inbox(), embedding()))
    assert (engine.encodes, engine.batches) == (0, [1])
    assert counts["rejected"] == 2


def test_workers_survive_a_reply_that_raises(make: MakeScheduler) -> None:
    class Hostile(Inbox):
        def flush(self) -> None: ...

        def is_cancelled(self) -> bool:
            raise RuntimeError("the pipe is gone")

    scheduler = make(patience=0)
    clicked, encoded = click(scheduler, Hostile(), embedding()), Hostile()
    scheduler.submit_image(SegmentJob(encoded, None, "hostile"), image())
    assert isinstance(clicked.get(), InternalError)
    assert isinstance(encoded.get(), InternalError)
    expect_answer(click(scheduler, Inbox(), embedding()))
    fine = Inbox()
    scheduler.submit_image(SegmentJob(fine, None, "fine"), image(1))
    assert expect_answer(fine) == []
    assert scheduler.alive


def test_idle_workers_keep_no_image_and_no_embedding_alive(make: MakeScheduler) -> None:
    scheduler = make(cache=EmbeddingCache(1))
    picture, shared = image(), embedding()
    held = [weakref.ref(picture), weakref.ref(shared)]
    done = Inbox()
    scheduler.submit_image(SegmentJob(done, prompt(), "key"), picture)
    expect_answer(done)
    expect_answer(click(scheduler, Inbox(), shared))
    del picture, shared
    # A ping goes through after the click's round; the encode's round ended before its answer was decoded.
    answered = threading.Event()
    scheduler.ping(answered.set)
    assert answered.wait(PATIENCE)
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_sessions_are_served_in_turn(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make(rows=1)
    hold_decoder(engine, scheduler)
    order: queue.Queue[str] = queue.Queue()

    class Named(Inbox):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
            order.put(self._name)

    for index in range(3):
        click(scheduler, Named(f"busy {index}"), embedding(), session="busy")
    click(scheduler, Named("quiet"), embedding(), session="quiet")
    engine.decode_gate.set()
    served = [order.get(timeout=PATIENCE) for _ in range(4)]
    # Two finishers may swap neighbours, but the quiet session never waits for the whole of the busy one.
    assert served.index("quiet") <= 2


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), InvalidInput("damaged")])
def test_an_engine_that_raises_answers_everybody_and_goes_on(
    make: MakeScheduler, engine: GatedEngine, failure: Exception
) -> None:
    scheduler = make()
    engine.failure = failure
    clicked, encoded = Inbox(), Inbox()
    click(scheduler, clicked, embedding())
    scheduler.submit_image(SegmentJob(encoded, prompt(), "key"), image())
    assert isinstance(clicked.get(), InternalError)
    assert isinstance(encoded.get(), InternalError if isinstance(failure, RuntimeError) else InvalidInput)
    engine.failure = None
    expect_answer(click(scheduler, Inbox(), embedding()))
    again = Inbox()
    scheduler.submit_image(SegmentJob(again, None, "key"), image())
    assert expect_answer(again) == []


def test_an_answer_that_cannot_be_built_becomes_an_error(make: MakeScheduler) -> None:
    assert isinstance(click(make(), Inbox(broken=True), embedding()).get(), InternalError)


def test_a_damaged_image_fails_its_own_request_only(make: MakeScheduler) -> None:
    scheduler = make()
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "PNG")
    cut = EncodedImage(buffer.getvalue()[:1500], max_bytes=10**6, max_pixels=10**6)
    damaged, fine = Inbox(), Inbox()
    scheduler.submit_image(SegmentJob(damaged, None, "damaged"), cut)
    scheduler.submit_image(SegmentJob(fine, None, "fine"), image())
    assert isinstance(damaged.get(), InvalidInput)
    assert expect_answer(fine) == []


def test_ping_goes_through_the_click_worker(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    answered = threading.Event()
    scheduler.ping(answered.set)
    assert not answered.is_set()
    engine.decode_gate.set()
    assert answered.wait(PATIENCE)


def test_closing_finishes_what_was_accepted_and_refuses_what_comes(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    accepted = Inbox()
    scheduler.submit_image(SegmentJob(accepted, prompt(5.0), "key"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    engine.encode_gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert len(expect_answer(accepted)) == 1
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), Unavailable)


def test_several_objects_of_one_request_stay_together(make: MakeScheduler) -> None:
    inbox = Inbox()
    make().submit_click(SegmentJob(inbox, prompt(4.0, objects=3), "key", embedding=embedding()))
    assert [answer.logits[0, 0, 0] for answer in expect_answer(inbox)] == [4.0, 4.0, 4.0]
