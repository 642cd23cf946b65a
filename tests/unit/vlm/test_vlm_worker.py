"""The worker of a vision-language model: loading once, batches, lanes and refusals. Its engine is a fake."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.vlm.worker_helpers import PATIENCE, Asker, FakeEngine, ask, working
from triton_sam.backend import vlm_loader
from triton_sam.errors import (
    Cancelled,
    InternalError,
    InvalidInput,
    NotFound,
    QueueFull,
    SetupError,
    Unavailable,
    WeightsError,
)


def test_a_hundred_questions_before_the_load_are_one_load_and_full_batches() -> None:
    go, loads, engine = threading.Event(), [], FakeEngine(batch=8)

    def load() -> FakeEngine:
        loads.append(1)
        assert go.wait(PATIENCE)
        return engine

    with working(load, vlm_queue=100) as worker:
        askers = ask(worker, *range(100))
        assert worker.loading_seconds is not None
        go.set()
        assert [asker.wait().said for asker in askers] == [[str(number)] for number in range(100)]
        assert worker.loading_seconds is None
    assert len(loads) == 1
    assert max(map(len, engine.batches)) == 8
    assert len(engine.batches) == 13


def test_questions_that_come_soon_after_one_another_share_a_batch() -> None:
    engine = FakeEngine(batch=3)
    with working(lambda: engine, vlm_gather_ms=60_000, vlm_lanes=1) as worker:
        first = ask(worker, "a")
        rest = ask(worker, "b", "c")  # the batch is full: nothing is waited for
        for asker in (*first, *rest):
            asker.wait()
    assert engine.batches == [["a", "b", "c"]]


def test_a_question_alone_goes_when_its_window_is_over() -> None:
    engine = FakeEngine(batch=3)
    with working(lambda: engine, vlm_gather_ms=30) as worker:
        assert ask(worker, "a")[0].wait().said == ["a"]


def test_a_full_queue_refuses_and_counts() -> None:
    go, counted = threading.Event(), []

    def load() -> FakeEngine:
        assert go.wait(PATIENCE)
        return FakeEngine()

    with working(load, count=lambda name, amount: counted.append(name), vlm_queue=2) as worker:
        askers = ask(worker, 1, 2)
        with pytest.raises(QueueFull, match="2 questions are waiting already"):
            ask(worker, 3)
        go.set()
        assert all(asker.wait().error is None for asker in askers)
    assert counted.count("vlm_rejected") == 1


def test_whoever_waits_too_long_for_the_load_is_told_and_the_load_goes_on() -> None:
    go, loads = threading.Event(), []

    def load() -> FakeEngine:
        loads.append(1)
        assert go.wait(PATIENCE)
        return FakeEngine()

    with working(load, vlm_wait_seconds=0.05) as worker:
        error = ask(worker, "a")[0].wait().error
        assert isinstance(error, Unavailable)
        assert re.fullmatch(r"fake is loading, \d+ s so far: try again in a moment", str(error))
        go.set()
        loaded = time.monotonic() + PATIENCE
        while worker.loading_seconds is not None and time.monotonic() < loaded:
            ask(worker, "again")[0].wait()
        assert ask(worker, "b")[0].wait().said == ["b"]
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("raised", "told", "sentence"),
    [
        (WeightsError("no weights"), NotFound, "no weights"),
        (SetupError("no torch"), InternalError, "no torch"),
        (Unavailable("no room"), Unavailable, "no room"),
        (ValueError("a secret"), InternalError, "loading fake failed on the server (ValueError)"),
    ],
)
def test_a_failed_load_fails_all_who_wait_and_a_later_question_loads_again(
    raised: Exception, told: type[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlm_loader, "_RETRY_SECONDS", 0.0)
    go, loads = threading.Event(), []

    def load() -> FakeEngine:
        loads.append(1)
        assert go.wait(PATIENCE)
        if len(loads) == 1:
            raise raised
        return FakeEngine()

    with working(load) as worker:
        askers = ask(worker, 1, 2, 3)
        go.set()
        for asker in askers:
            assert type(asker.wait().error) is told
            assert str(asker.error) == sentence
        assert ask(worker, "b")[0].wait().said == ["b"]
    assert len(loads) == 2


def test_a_failure_is_told_again_before_the_next_try() -> None:
    """A load takes minutes, and may have sent another model away."""
    loads = []

    def load() -> FakeEngine:
        loads.append(1)
        raise SetupError("no torch")

    with working(load) as worker:
        assert str(ask(worker, 1)[0].wait().error) == "no torch"
        with pytest.raises(InternalError, match="no torch"):
            ask(worker, 2)
    assert len(loads) == 1


class Panic(BaseException):
    """As the Rust of tokenizers and safetensors raises it (pyo3's PanicException is no Exception)."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_panic_while_loading_is_told_too() -> None:
    def load() -> FakeEngine:
        raise Panic

    with working(load, vlm_wait_seconds=0.2) as worker:
        assert isinstance(ask(worker, 1)[0].wait().error, InternalError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_panic_in_a_batch_leaves_the_lane_at_work() -> None:
    def during(names: Sequence[Any]) -> None:
        if "bad" in names:
            raise Panic

    with working(lambda: FakeEngine(batch=1, during=during), vlm_lanes=1, vlm_wait_seconds=1) as worker:
        bad = ask(worker, "bad")[0]
        assert bad.done.wait(3), "nobody answers"
        assert isinstance(bad.error, InternalError)
        assert ask(worker, "good")[0].wait().said == ["good"]


def test_a_short_question_is_answered_while_a_long_batch_runs() -> None:
    begun, go = threading.Event(), threading.Event()

    def during(names: Sequence[Any]) -> None:
        if "long" in names:
            begun.set()
            assert go.wait(PATIENCE)

    with working(lambda: FakeEngine(during=during), vlm_lanes=2) as worker:
        long = ask(worker, "long")[0]
        assert begun.wait(PATIENCE)
        assert ask(worker, "short")[0].wait().said == ["short"]
        assert not long.ended
        go.set()
        long.wait()


def test_an_engine_that_takes_one_thread_gets_one() -> None:
    inside, most = threading.Semaphore(1), []

    def during(names: Sequence[Any]) -> None:
        most.append(inside.acquire(blocking=False))
        inside.release()

    with working(lambda: FakeEngine(batch=1, concurrent=False, during=during), vlm_lanes=3) as worker:
        for asker in ask(worker, *range(20)):
            asker.wait()
    assert all(most)


def test_those_who_are_gone_are_dropped_wherever_they_are() -> None:
    go, engine = threading.Event(), FakeEngine()

    def load() -> FakeEngine:
        assert go.wait(PATIENCE)
        return engine

    with working(load, vlm_lanes=1) as worker:
        waiting, staying = ask(worker, "gone", "stays")
        waiting.gone = True
        assert isinstance(waiting.wait().error, Cancelled)  # while it loads
        go.set()
        assert staying.wait().said == ["stays"]
        late = Asker("late", gone=True)
        worker.submit(late.job())
        assert isinstance(late.wait().error, Cancelled)
    assert engine.batches == [["stays"]]


def test_an_engine_that_raises_harms_its_batch_only() -> None:
    def during(names: Sequence[Any]) -> None:
        if "bad" in names:
            raise ValueError("a secret")

    with working(lambda: FakeEngine(batch=1, during=during)) as worker:
        bad, good = ask(worker, "bad", "good")
        assert str(bad.wait().error) == "answering failed on the server (ValueError)"
        assert good.wait().said == ["good"]


def test_a_question_that_cannot_be_prepared_harms_itself_only() -> None:
    engine = FakeEngine()
    with working(lambda: engine, vlm_gather_ms=60_000) as worker:
        wrong, broken, *good = ask(worker, InvalidInput("too long"), KeyError("x"), "a", "b")
        assert isinstance(wrong.wait().error, InvalidInput)
        assert str(broken.wait().error) == "reading the question failed on the server (KeyError)"
        assert [asker.wait().said for asker in good] == [["a"], ["b"]]
    assert engine.batches == [["a", "b"]]


def test_an_answer_that_never_ends_is_a_fault_and_not_a_cancel_while_somebody_waits() -> None:
    with working(FakeEngine) as worker:
        assert isinstance(ask(worker, "silent")[0].wait().error, InternalError)
