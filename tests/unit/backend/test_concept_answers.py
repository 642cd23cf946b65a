"""The answers to concepts, of hundreds of masks: no click waits for them, and they end when nobody wants them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.backend.concept_helpers import ColourEngine, Mail, ask
from tests.unit.backend.scheduler_helpers import Counts, Inbox, MakeScheduler, click, embedding
from tests.waiting import eventually
from triton_sam.backend import concept_replies, replies, responder
from triton_sam.backend.finishers import Finishers
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.errors import Cancelled

#: Sixteen instances, each the mask of one query.
MANY = {"text": "red", "score_threshold": 0}


class Masks:
    """Counts the masks that are made, and holds those from the number ``at`` on."""

    def __init__(self, at: int = 2) -> None:
        self.made = 0
        self.at = at
        self.arrived, self.gate = threading.Event(), threading.Event()
        self._rle = replies._rle

    def __call__(self, *what: Any) -> dict[str, Any]:
        self.made += 1
        if self.made >= self.at:
            self.arrived.set()
            assert self.gate.wait(10)
        return self._rle(*what)


@pytest.fixture
def engine() -> ColourEngine:
    return ColourEngine()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Masks]:
    held = Masks()
    monkeypatch.setattr(replies, "_rle", held)
    monkeypatch.setattr(concept_replies, "ASK_SECONDS", -1.0)
    yield held
    held.gate.set()


def none_open(scheduler: Scheduler) -> bool:
    return not scheduler._concepts._waiting.open and scheduler.unanswered == 0


def test_a_click_does_not_wait_for_them(make: MakeScheduler, held: Masks) -> None:
    scheduler = make()
    waiting = [ask(scheduler, MANY) for _ in range(responder._FINISHERS + 1)]
    assert held.arrived.wait(10)
    heavy = click(scheduler, Inbox(), embedding())
    assert isinstance(heavy.get(), list)
    assert held.made == held.at, "they are built one after the other"
    held.gate.set()
    for mail in waiting:
        assert len(mail.answer["json"]["masks"]) == 16


@pytest.mark.parametrize("background", [False, True])
def test_a_cancelled_one_stops_between_two_masks(
    make: MakeScheduler, counts: Counts, held: Masks, background: bool
) -> None:
    scheduler = make()
    mine = ask(scheduler, MANY, session="mine", sequence=1, background=background)
    assert held.arrived.wait(10)
    waiting = ask(scheduler, MANY, session="mine", sequence=2, background=background)
    other = ask(scheduler, "blue", session="other", background=background)
    eventually(lambda: len(scheduler._concepts._waiting.entries) == 0, "what was found of all")
    assert scheduler.cancel_session("other", before=0) == 0
    assert scheduler.cancel_session("mine", before=2) == 1
    assert isinstance(mine.error, Cancelled)
    assert scheduler.cancel_session("mine") == 1
    assert isinstance(waiting.error, Cancelled)
    assert scheduler.cancel_session("mine") == 0
    held.gate.set()
    assert len(other.answer["json"]["masks"]) == 2
    assert held.made == held.at + 2
    eventually(lambda: none_open(scheduler), "the end of all")
    assert counts["cancelled"] == 2
    assert mine.outputs.empty()


def test_a_newer_one_of_the_session_replaces_it(make: MakeScheduler, held: Masks) -> None:
    scheduler = make()
    old = ask(scheduler, MANY, session="mine", latest_wins=True, sequence=1)
    assert held.arrived.wait(10)
    new = ask(scheduler, "blue", session="mine", latest_wins=True, sequence=2)
    assert isinstance(old.error, Cancelled)
    held.gate.set()
    assert new.answer
    assert held.made == held.at + 2


def test_nothing_is_built_for_somebody_who_is_gone(make: MakeScheduler, counts: Counts, held: Masks) -> None:
    scheduler = make()
    mail = ask(scheduler, MANY)
    assert held.arrived.wait(10)
    mail._gone = True
    held.gate.set()
    assert isinstance(mail.error, Cancelled)
    assert held.made == held.at
    eventually(lambda: none_open(scheduler), "its end")
    assert counts["cancelled"] == 1


@pytest.mark.parametrize(("between", "times"), [(60.0, 0), (-1.0, 16)])
def test_triton_is_asked_now_and_then(
    between: float, times: int, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for an answer that is built at once: to ask takes as long as several masks."""
    monkeypatch.setattr(concept_replies, "ASK_SECONDS", between)
    asked: list[int] = []

    class Asked(Mail):
        def is_cancelled(self) -> bool:
            asked.append(1)
            return False

    assert len(ask(make(), MANY, reply=Asked()).answer["json"]["masks"]) == 16
    assert len(asked) == times


def test_background_answers_have_threads_of_their_own() -> None:
    finishers, gate = Finishers(2), threading.Event()
    done: list[str] = []
    plain = SegmentJob(Mail(), None, "key")
    for _ in range(3):
        finishers.submit(SegmentJob(Mail(), None, "key", background=True), gate.wait)
    finished = threading.Event()
    finishers.submit(plain, lambda: (done.append("click"), finished.set()))
    assert finished.wait(10)
    gate.set()
    finishers.close()
    assert done == ["click"]
