"""Sequence numbers of a session: late requests, requests cancelled before they arrive, and kept turns."""

from __future__ import annotations

from tests.unit.backend.scheduler_helpers import (
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
from triton_sam.errors import Cancelled


def expect_cancelled(*inboxes: Inbox) -> None:
    for inbox in inboxes:
        assert isinstance(inbox.get(), Cancelled)


def test_cancel_before_a_number_spares_the_newest(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make()
    first = hold_decoder(engine, scheduler)
    shared = embedding()
    hovers = [click(scheduler, Inbox(), shared, float(n), session="a", sequence=n) for n in range(1, 51)]
    other = click(scheduler, Inbox(), shared, 99.0, session="b", sequence=1)
    assert scheduler.cancel_session("a", before=50) == 49
    engine.decode_gate.set()
    expect_cancelled(*hovers[:-1])
    assert expect_answer(hovers[-1])[0].logits[0, 0, 0] == 50
    assert expect_answer(other)[0].logits[0, 0, 0] == 99
    expect_answer(first)
    assert engine.batches == [1, 2]
    assert counts["cancelled"] == 49


def test_a_request_that_arrives_after_its_cancel_is_not_computed(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    assert scheduler.cancel_session("a", before=7) == 0
    assert scheduler.cancel_session("a", only=8) == 0
    shared = embedding()
    expect_cancelled(*(click(scheduler, Inbox(), shared, session="a", sequence=number) for number in (3, 6, 8)))
    for number in (7, 9):
        expect_answer(click(scheduler, Inbox(), shared, session="a", sequence=number))
    expect_answer(click(scheduler, Inbox(), shared, session="b", sequence=3))
    assert engine.batches == [1, 1, 1]


def test_a_late_hover_does_not_supersede_a_newer_one(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    shared = embedding()
    newer = click(scheduler, Inbox(), shared, 5.0, session="a", sequence=5, latest_wins=True)
    late = click(scheduler, Inbox(), shared, 4.0, session="a", sequence=4, latest_wins=True)
    expect_cancelled(late)
    engine.decode_gate.set()
    assert expect_answer(newer)[0].logits[0, 0, 0] == 5


def test_a_late_hover_spares_a_newer_plain_request(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    shared = embedding()
    older = click(scheduler, Inbox(), shared, 1.0, session="a", sequence=1)
    newer = click(scheduler, Inbox(), shared, 3.0, session="a", sequence=3)
    hover = click(scheduler, Inbox(), shared, 2.0, session="a", sequence=2, latest_wins=True)
    expect_cancelled(older)
    engine.decode_gate.set()
    for inbox in (newer, hover):
        expect_answer(inbox)


def test_cancelling_one_request_leaves_its_session_alone(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    shared = embedding()
    clicks = [click(scheduler, Inbox(), shared, session="a", sequence=number) for number in (1, 2, 3)]
    assert scheduler.cancel_session("a", only=2) == 1
    engine.decode_gate.set()
    expect_cancelled(clicks[1])
    expect_answer(clicks[0])
    expect_answer(clicks[2])


def test_an_encode_that_nobody_waits_for_any_more_is_dropped(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    busy, doomed, wanted = Inbox(), Inbox(), Inbox()
    scheduler.submit_image(SegmentJob(busy, None, "busy"), image(1))
    assert engine.encode_arrived.wait(10)
    scheduler.submit_image(SegmentJob(doomed, None, "doomed", session="a", sequence=1), image(2))
    scheduler.submit_image(SegmentJob(wanted, None, "wanted", session="a", sequence=2), image(3))
    assert scheduler.cancel_session("a", before=2) == 1
    expect_cancelled(doomed)
    engine.encode_gate.set()
    expect_answer(busy)
    expect_answer(wanted)
    assert engine.encodes == 2


def test_a_session_that_replaces_its_own_request_keeps_its_turn(make: MakeScheduler, engine: GatedEngine) -> None:
    """If each new hover went to the end of the round, a moving mouse would never see a mask."""
    scheduler = make()
    hold_decoder(engine, scheduler)
    order: list[str] = []

    class Noting(Inbox):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def succeed(self, job: SegmentJob, decoded: list) -> None:  # type: ignore[type-arg]
            order.append(self.name)
            super().succeed(job, decoded)

    click(scheduler, Noting("old"), embedding(), session="mouse", sequence=1, latest_wins=True)
    others = [click(scheduler, Noting(f"other {n}"), embedding(), session=f"s{n}") for n in range(5)]
    newest = click(scheduler, Noting("newest"), embedding(), session="mouse", sequence=2, latest_wins=True)
    engine.decode_gate.set()
    for inbox in (newest, *others):
        expect_answer(inbox)
    assert order.index("newest") < order.index("other 1")  # two finishers may swap neighbours
