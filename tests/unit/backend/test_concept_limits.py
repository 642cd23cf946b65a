"""How many concepts a scheduler takes, and how many requests for them are half done at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.backend.concept_helpers import PICTURE, ColourEngine, Mail, ask, asked, colour_embedding, hold, texts
from tests.unit.backend.scheduler_helpers import Counts, Inbox, MakeScheduler, click, embedding
from tests.waiting import eventually
from triton_sam.backend import concepts
from triton_sam.backend.concept_queue import MOST_OPEN, MOST_ROWS, PromisedConcepts
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.engines.base import Decoded
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.errors import Cancelled, InternalError, QueueFull

MOST = 16
"""Concepts of a request."""
MANY = texts(*["green"] * MOST)
IMAGE = EncodedImage(file_bytes(PICTURE), max_bytes=10**7, max_pixels=10**7)


class Crowd(ColourEngine):
    """Notes how many concepts, of people and of others, are begun and have no answer when one is looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler | None = None
        self.begun: list[tuple[int, int]] = []

    def begin_concepts(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        if self.scheduler is not None:
            begun = self.scheduler._concepts._waiting.open
            counts = [
                sum(entry.job.concept_count for entry in begun if entry.job.background is background)
                for background in (False, True)
            ]
            self.begun.append((counts[0], counts[1]))
        return super().begin_concepts(rows)


@pytest.fixture
def engine() -> Crowd:
    return Crowd()


def send(scheduler: Scheduler, document: dict[str, Any] = MANY, **fields: Any) -> Mail:
    """A request whose image is not encoded."""
    job = asked(document, **fields)
    scheduler.submit_image(job, IMAGE)
    assert isinstance(job.reply, Mail)
    return job.reply


def refused(mails: list[Mail]) -> int:
    return sum(not mail.outputs.empty() for mail in mails)


def all_room(scheduler: Scheduler) -> Callable[[], bool]:
    return lambda: scheduler._responder.concepts == PromisedConcepts()


# -- how many are taken ----------------------------------------------------------------------------------------------


def test_those_that_wait_for_an_encode_count(engine: ColourEngine, make: MakeScheduler, counts: Counts) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    mails = [send(scheduler) for _ in range(400)]
    taken = MOST_ROWS // MOST
    assert refused(mails) == 400 - taken == counts["rejected"]
    for mail in mails[taken:]:
        assert isinstance(mail.error, QueueFull)
    assert isinstance(send(scheduler, texts("red")).error, QueueFull), "not even one has room"
    engine.encode_gate.set()
    for mail in mails[:taken]:
        assert len(mail.answer["json"]["concepts"]) == MOST
    assert sum(len(call) for call in engine.looked_for) == MOST_ROWS
    eventually(all_room(scheduler), "the room of all")
    assert send(scheduler).answer


def test_a_request_fits_as_a_whole_or_not_at_all(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    taken = [hold(engine, scheduler)]
    taken += [ask(scheduler, MANY) for _ in range(MOST_ROWS // MOST - 1)]
    assert isinstance(ask(scheduler, MANY).error, QueueFull)
    taken.append(ask(scheduler, texts(*["red"] * (MOST - 1))))
    assert isinstance(ask(scheduler, "red").error, QueueFull)
    engine.concept_gate.set()
    for mail in taken:
        assert mail.answer


def test_the_background_takes_no_place_from_people(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    taken = [send(scheduler, background=True) for _ in range(MOST_ROWS // 2 // MOST)]
    assert isinstance(send(scheduler, texts("red"), background=True).error, QueueFull), "half of the places"
    taken += [send(scheduler) for _ in range(MOST_ROWS // MOST)]
    assert refused(taken) == 0
    assert isinstance(send(scheduler).error, QueueFull)
    engine.encode_gate.set()
    for mail in taken:
        assert mail.answer


def test_people_leave_the_background_none(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    taken = [send(scheduler) for _ in range(MOST_ROWS // MOST)]
    assert isinstance(send(scheduler, texts("red"), background=True).error, QueueFull)
    engine.encode_gate.set()
    for mail in taken:
        assert mail.answer


def test_a_request_alone_is_never_too_large(engine: ColourEngine, make: MakeScheduler) -> None:
    for background in (False, True):
        mail = ask(make(), texts(*["red"] * MOST), background=background)
        assert mail.answer
    job = asked(texts(*["red"] * MOST))
    promised = PromisedConcepts(people=MOST_ROWS - MOST)
    assert promised.refusal(job, []) is None
    promised.add(job)
    assert promised.refusal(job, []) == MOST_ROWS
    assert promised.refusal(job, [job]) is None, "it replaces the other one"


def test_every_end_gives_the_room_back(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make(patience=-1.0)
    engine.encode_gate.clear()
    dropped = send(scheduler, session="mine")
    replaced = send(scheduler, session="other", latest_wins=True, sequence=1)
    send(scheduler, session="other", latest_wins=True, sequence=2)
    gone = send(scheduler, reply=Mail(gone=True))
    assert scheduler.cancel_session("mine") == 1
    engine.failure = RuntimeError("no memory")
    failed = send(scheduler)
    engine.encode_gate.set()
    for mail in (dropped, replaced):
        assert isinstance(mail.error, Cancelled)
    assert isinstance(failed.error, InternalError)
    assert isinstance(gone.outputs.get(timeout=10), (Cancelled, InternalError))
    eventually(all_room(scheduler), "the room of all")
    engine.failure, engine.concept_failure = None, RuntimeError("no memory")
    assert isinstance(ask(scheduler, MANY).error, InternalError)
    engine.concept_failure = None
    hold(engine, scheduler, MANY, session="mine")
    assert scheduler.cancel_session("mine") == 1
    engine.concept_gate.set()
    eventually(all_room(scheduler), "the room of all")


def test_a_newer_request_takes_the_place_of_the_one_that_it_replaces(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    taken = [send(scheduler) for _ in range(MOST_ROWS // MOST - 1)]
    old = send(scheduler, session="mine", latest_wins=True, sequence=1)
    new = send(scheduler, session="mine", latest_wins=True, sequence=2)
    assert isinstance(old.error, Cancelled)
    assert isinstance(send(scheduler).error, QueueFull)
    engine.encode_gate.set()
    for mail in (*taken, new):
        assert mail.answer


def test_clicks_are_taken_beside_a_full_queue(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    taken = [hold(engine, scheduler)]
    taken += [ask(scheduler, MANY) for _ in range(MOST_ROWS // MOST - 1)]
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
    engine.concept_gate.set()
    for mail in taken:
        assert mail.answer


# -- how many are half done ------------------------------------------------------------------------------------------


def test_few_requests_are_half_done_at_a_time(
    engine: Crowd, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "LONGEST_WAIT", 0.0)
    engine.scheduler = scheduler = make()
    people = [hold(engine, scheduler, MANY, session="first")]
    jobs = [ask(scheduler, MANY, background=True) for _ in range(4)]
    people += [ask(scheduler, MANY, session=str(number)) for number in range(7)]
    engine.concept_gate.set()
    for mail in (*people, *jobs):
        assert mail.answer
    assert max(people for people, _ in engine.begun) == MOST_OPEN
    assert max(jobs for _, jobs in engine.begun) == MOST_OPEN // 2
    eventually(lambda: scheduler._concepts._waiting.open == [], "the end of all")


def test_small_requests_fill_a_call(engine: Crowd, make: MakeScheduler) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, concept_rows=8)
    scheduler = make()
    held = hold(engine, scheduler)
    shared = colour_embedding(PICTURE)
    waiting = [ask(scheduler, "red", shared) for _ in range(9)]
    engine.concept_gate.set()
    for mail in (held, *waiting):
        assert mail.answer
    assert [len(call) for call in engine.looked_for] == [1, 8, 1]


def test_what_does_not_fit_is_not_overtaken(engine: Crowd, make: MakeScheduler) -> None:
    scheduler = make()
    first = hold(engine, scheduler, MANY, session="first")
    begun = [ask(scheduler, MANY) for _ in range(MOST_OPEN // MOST - 2)]
    begun.append(ask(scheduler, texts(*["red"] * (MOST - 1))))
    large, small = ask(scheduler, texts("blue", "blue")), ask(scheduler, "yellow")
    engine.concept_gate.set()
    for mail in (first, *begun, large, small):
        assert mail.answer
    calls = [call[0] for call in engine.looked_for]
    assert calls.index("blue") < calls.index("yellow")


class Slow(Mail):
    """Its answer takes until somebody lets it go."""

    def __init__(self, engine: ColourEngine) -> None:
        super().__init__()
        self._engine = engine

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        assert self._engine.decode_gate.wait(10)
        super().succeed(job, decoded)


def test_results_that_wait_for_their_answer_count(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    engine.decode_gate.clear()
    slow = [ask(scheduler, MANY, reply=Slow(engine)) for _ in range(MOST_OPEN // MOST)]
    late = ask(scheduler, "blue")
    eventually(lambda: sum(len(call) for call in engine.looked_for) == MOST_OPEN, "what was found of them")
    engine.concept_arrived.clear()
    assert not engine.concept_arrived.wait(0.2)
    engine.decode_gate.set()
    for mail in (*slow, late):
        assert mail.answer
    assert engine.looked_for[-1] == ["blue"]
