"""Concepts in the scheduler: beside clicks, before everything, in turns, cancelled before the next row."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.backend import test_everything as everything
from tests.unit.backend.concept_helpers import PICTURE, ColourEngine, Mail, ask, colour_embedding, hold, texts
from tests.unit.backend.scheduler_helpers import Counts, Inbox, MakeScheduler, click, embedding, prompt
from tests.waiting import eventually
from triton_sam.backend import concepts, decodes
from triton_sam.backend import everything as searches
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import QueueLimits, SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.driver import Progress
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.errors import Cancelled, InternalError, InvalidInput, TritonSamError


@pytest.fixture
def engine() -> ColourEngine:
    return ColourEngine()


# -- order -----------------------------------------------------------------------------------------------------------


def test_clicks_do_not_wait(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    assert scheduler.encode_seconds == 0
    held = hold(engine, scheduler)
    assert scheduler.encode_seconds > 0, "the server knows that it works on something"
    waiting = ask(scheduler, "red")
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
    engine.concept_gate.set()
    assert held.answer
    assert waiting.answer


class Both(everything.DiscEngine, ColourEngine):
    """Finds discs in the one scene and colours in the other."""


def test_everything_and_the_background_wait_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for longest, waits in ((60.0, True), (0.0, False)):
        for module in (decodes, concepts, searches):
            monkeypatch.setattr(module, "LONGEST_WAIT", longest)
        engine = Both()
        scheduler = Scheduler(engine, EmbeddingCache(10**6), Counts(), QueueLimits())
        held = hold(engine, scheduler)
        order: list[str] = []
        search = everything.ask(
            scheduler, EverythingOptions(points_per_side=2), reply=everything.Ordered("search", order)
        )
        job = everything.Ordered("job", order)
        shared = everything.scene_embedding(everything.picture())
        scheduler.submit_click(SegmentJob(job, prompt(), "key", embedding=shared, background=True))
        if waits:
            assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
            assert engine.kinds == ["click"], "only the click was decoded"
            assert order == []
        else:
            assert isinstance(search.get(), Progress)
            assert isinstance(job.get(), list)
        engine.concept_gate.set()
        assert held.answer
        if waits:
            assert isinstance(search.get(), Progress)
            assert isinstance(job.get(), list)
        scheduler.close()


class Finding(ColourEngine):
    """Looks for everything by itself, as on a GPU; there is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = dataclasses.replace(self.capacity, on_cpu=False, finds=True, find_points=4)
        self.chunks = 0

    def can_find(self, options: EverythingOptions) -> bool:
        return True

    def begin_find(self, *what: object) -> Callable[[], Candidates]:
        self.chunks += 1
        number, corners = np.zeros(0, np.float32), np.zeros((0, 4), np.int64)
        nothing = Candidates((), np.zeros(0, np.int64), corners, number, number, np.zeros((0, 2)), corners)
        return lambda: nothing


@pytest.mark.parametrize(("longest", "waits"), [(60.0, True), (0.0, False)])
def test_an_engine_that_finds_by_itself_waits_too(monkeypatch: pytest.MonkeyPatch, longest: float, waits: bool) -> None:
    monkeypatch.setattr(searches, "LONGEST_WAIT", longest)
    engine = Finding()
    scheduler = Scheduler(engine, EmbeddingCache(10**6), Counts(), QueueLimits())
    options = EverythingOptions(points_per_side=4)
    assert isinstance(everything.ask(scheduler, options).get(), Progress)
    chunks, held = engine.chunks, hold(engine, scheduler)
    search = everything.ask(scheduler, options)
    if waits:
        assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
        assert engine.chunks == chunks
    else:
        assert isinstance(search.get(), Progress)
    engine.concept_gate.set()
    assert held.answer
    if waits:
        assert isinstance(search.get(), Progress)
    scheduler.close()


def test_sessions_take_turns(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    many = hold(engine, scheduler, texts(*["red"] * 8), session="one")
    again = ask(scheduler, "blue", session="one")
    few = ask(scheduler, "yellow", session="two")
    engine.concept_gate.set()
    assert len(few.answer["json"]["masks"]) == 1
    assert len(many.answer["json"]["concepts"]) == 8
    assert again.answer
    assert engine.looked_for == [["red", "red"], ["red", "red"], ["yellow"], ["red", "red"], ["red", "red"], ["blue"]]


def test_rows_of_several_requests_are_one_call(engine: ColourEngine, make: MakeScheduler) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, concept_rows=4)
    scheduler = make()
    held = hold(engine, scheduler)
    shared = colour_embedding(PICTURE)
    waiting = [ask(scheduler, wish, shared) for wish in ("red", texts("blue", "red"), "green", "yellow")]
    engine.concept_gate.set()
    assert held.answer
    assert [len(mail.answer["json"]["masks"]) for mail in waiting] == [3, 5, 0, 1]
    assert [len(words) for words in engine.looked_for] == [1, 4, 1]


@pytest.mark.parametrize("overlaps", [False, True])
def test_calls_overlap_where_that_pays(engine: ColourEngine, make: MakeScheduler, overlaps: bool) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, on_cpu=False, overlaps=overlaps)
    scheduler = make()
    many = hold(engine, scheduler, texts("red", "blue", "green", "yellow", "red"))
    if overlaps:
        eventually(lambda: len(engine.looked_for) == 2, "the second call")
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
    assert len(engine.looked_for) == (2 if overlaps else 1)
    more = ask(scheduler, "blue")
    engine.concept_gate.set()
    assert [concept["found"] for concept in many.answer["json"]["concepts"]] == [3, 2, 0, 1, 3]
    assert more.answer
    eventually(lambda: scheduler.encode_seconds == 0, "its end")


def test_rows_of_two_images_are_two_calls(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    shared = colour_embedding(PICTURE)
    waiting = [ask(scheduler, "red", shared), ask(scheduler, "blue"), ask(scheduler, "green", shared)]
    engine.concept_gate.set()
    for mail in (held, *waiting):
        assert mail.answer
    assert engine.looked_for == [["yellow"], ["red", "green"], ["blue"]]


def test_the_background_comes_after_people(
    engine: ColourEngine, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "LONGEST_WAIT", 60.0)
    scheduler = make()
    held = hold(engine, scheduler)
    job = ask(scheduler, texts("red", "red", "red"), background=True)
    person = ask(scheduler, texts("blue", "blue", "blue"))
    engine.concept_gate.set()
    for mail in (held, job, person):
        assert mail.answer
    assert engine.looked_for == [["yellow"], ["blue", "blue"], ["blue"], ["red", "red"], ["red"]]


def test_the_background_does_not_wait_for_ever(
    engine: ColourEngine, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "LONGEST_WAIT", 0.0)
    scheduler = make()
    held = hold(engine, scheduler)
    job = ask(scheduler, "red", background=True)
    person = ask(scheduler, texts("blue", "blue", "blue"))
    engine.concept_gate.set()
    for mail in (held, job, person):
        assert mail.answer
    assert engine.looked_for[1] == ["red"]


# -- cancelling and failing ------------------------------------------------------------------------------------------


def test_cancelled_ones_end_before_their_next_row(engine: ColourEngine, make: MakeScheduler, counts: Counts) -> None:
    scheduler = make()
    running = hold(engine, scheduler, texts(*["red"] * 8), session="mine")
    waiting = ask(scheduler, "blue", session="mine")
    spared = ask(scheduler, "green", session="other")
    assert scheduler.cancel_session("mine") == 2
    assert isinstance(running.error, Cancelled)
    assert isinstance(waiting.error, Cancelled)
    engine.concept_gate.set()
    assert spared.answer
    assert engine.looked_for == [["red", "red"], ["green"]]
    eventually(lambda: scheduler.unanswered == 0, "the end of all")
    assert counts["cancelled"] == 2


def test_a_newer_request_of_the_session_replaces_it(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    old = ask(scheduler, "red", session="mine", latest_wins=True, sequence=1)
    other = ask(scheduler, "green", session="other")
    new = ask(scheduler, "blue", session="mine", latest_wins=True, sequence=2)
    late = ask(scheduler, "red", session="mine", latest_wins=True, sequence=1)
    assert isinstance(old.error, Cancelled)
    assert isinstance(late.error, Cancelled)
    engine.concept_gate.set()
    for mail in (held, other, new):
        assert mail.answer
    assert engine.looked_for == [["yellow"], ["blue"], ["green"]], "it kept its turn"


def test_nothing_is_computed_for_somebody_who_is_gone(engine: ColourEngine, make: MakeScheduler) -> None:
    mail = ask(make(patience=-1.0), "red", reply=Mail(gone=True))
    assert isinstance(mail.error, Cancelled)
    assert engine.looked_for == []


def test_an_engine_that_fails_is_told_and_others_go_on(engine: ColourEngine, make: MakeScheduler) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, concept_rows=4)
    scheduler = make()
    shared = colour_embedding(PICTURE)
    engine.concept_failure = RuntimeError("no memory")
    assert isinstance(ask(scheduler, "red").error, InternalError)
    engine.concept_failure, engine.bad_text = None, "bad"
    held = hold(engine, scheduler)
    good, bad, more = (ask(scheduler, wish, shared) for wish in ("red", texts("red", "bad"), "blue"))
    engine.concept_gate.set()
    assert isinstance(bad.error, InternalError)
    for mail in (held, good, more):
        assert mail.answer
    engine.concept_failure = InvalidInput("this text cannot be read")
    assert isinstance(ask(scheduler, "red").error, InvalidInput)
    eventually(lambda: scheduler.unanswered == 0, "the end of all")
    assert scheduler.alive


def test_closing_finishes_what_was_taken(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    waiting = [ask(scheduler, texts("red", "blue", "red")), ask(scheduler, "red", background=True)]
    engine.concept_gate.set()
    scheduler.close()
    for mail in (held, *waiting):
        assert mail.answer
    assert isinstance(ask(scheduler, "red").error, TritonSamError)


def test_an_idle_thread_keeps_no_image(make: MakeScheduler) -> None:
    scheduler = make()
    shared = colour_embedding(PICTURE)
    gone = weakref.ref(shared)
    assert ask(scheduler, "red", shared).answer
    del shared

    def freed() -> bool:
        gc.collect()
        return gone() is None

    eventually(freed, "the embedding's end")
