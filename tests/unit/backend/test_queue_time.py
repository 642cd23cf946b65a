"""The model counts queue times itself: Triton's own queue time ends where our queues begin."""

from __future__ import annotations

import time

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
)
from triton_sam.backend.jobs import SegmentJob


def test_the_wait_of_answered_clicks_is_counted(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(rows=1)
    first = hold_decoder(engine, scheduler)
    begun = time.perf_counter()
    second = click(scheduler, Inbox(), embedding())
    queued = time.perf_counter()
    time.sleep(0.05)  # the wait is what is measured
    held = (time.perf_counter() - queued) * 1e6
    engine.decode_gate.set()
    expect_answer(first)
    expect_answer(second)
    scheduler.close()  # what is counted after an answer is counted then
    assert counts["turns"] == 2
    assert held * 0.99 <= counts["queue_microseconds"] <= (time.perf_counter() - begun) * 1e6 + 1e6


def test_the_wait_of_an_image_is_counted(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    inboxes = [Inbox() for _ in range(6)]
    for number, inbox in enumerate(inboxes):
        scheduler.submit_image(SegmentJob(inbox, None, str(number)), image(number))
    assert engine.encode_arrived.wait(PATIENCE)
    time.sleep(0.05)
    engine.encode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    scheduler.close()  # what is counted after an answer is counted then
    assert counts["turns"] == 6
    assert counts["queue_microseconds"] >= 3 * 50_000 * 0.99  # those beyond what is prepared ahead
