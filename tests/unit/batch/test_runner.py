"""The loop of a job: what it keeps busy, what it holds, and what stays when it is ended."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.batch.state_helpers import (
    FakeExecutor,
    check_complete,
    given,
    opened,
    outcome_of,
    result_of,
    run,
)
from triton_sam.batch import runner
from triton_sam.batch.progress import JobProgress, Rate, rest_seconds
from triton_sam.batch.records import ItemResult, Outcome, Work
from triton_sam.batch.state import recording, results
from triton_sam.batch.state.database import STATE_FILE
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore
from triton_sam.batch.stopping import StopRequest
from triton_sam.errors import InvalidInput, JobStopped

COUNT = 150
NAMES = [f"{number}.png" for number in range(COUNT)]
FAILED = sum(number % 7 == 3 for number in range(COUNT))


class Writer:
    """Writes a file beside, and does what it is told for one image."""

    def __init__(self, folder: Path, fault: Callable[[], object] = lambda: None, index: int = 9) -> None:
        self._folder, self._fault, self._index = folder / "labels", fault, index

    def write(self, result: ItemResult, data: Callable[[], bytes]) -> Path | None:
        if result.item.index == self._index:
            self._fault()
        path = self._folder / f"{result.item.stem}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data() + data())
        return path


def raising(error: BaseException) -> Callable[[], object]:
    def fault() -> object:
        raise error

    return fault


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with opened(tmp_path, given(NAMES)) as store:
        yield store


def test_all_images_are_segmented_once(store: JobStore) -> None:
    executor = FakeExecutor()
    told: list[JobProgress] = []
    summary = run(store, executor, [Writer(store.folder)], told.append)
    check_complete(store)
    assert executor.submitted == list(range(COUNT))
    assert executor.most == 8
    assert executor.closed == [False]
    assert (summary.done, summary.failed, summary.waiting, summary.now) == (COUNT - FAILED, FAILED, 0, COUNT)
    assert f"129 of 150 images done, {FAILED} failed, 0 left; 150 in" in summary.text
    assert (told[0].done, told[0].failed, told[0].of) == (0, 0, COUNT)
    assert (told[-1].done, told[-1].failed, told[-1].rest_seconds) == (COUNT - FAILED, FAILED, 0)
    assert told[-1].rate > 0
    assert told[0].doing == "0 in flight"
    assert (store.folder / "labels" / "8.txt").read_text() == "8.png8.png"
    assert not (store.folder / "labels" / "3.txt").exists()
    assert run(store, again := FakeExecutor()).now == 0
    assert again.submitted == []
    assert store.facts().runs == 2


@pytest.mark.parametrize("error", [JobStopped("no server"), ValueError("a bug"), KeyboardInterrupt()])
def test_an_error_of_the_executor_ends_the_job_and_keeps_what_has_ended(store: JobStore, error: BaseException) -> None:
    given_out: list[int] = []

    def outcome(work: Work) -> Outcome:
        given_out.append(work.item.index)
        return outcome_of(work)

    def stop(executor: FakeExecutor) -> None:
        if len(given_out) >= 30:
            raise error

    executor = FakeExecutor(outcome=outcome, on_finished=stop)
    with pytest.raises(type(error)):
        run(store, executor)
    assert executor.closed == [True]
    ended = [item.index for item in store.done()] + [failure.item.index for failure in store.failures()]
    assert sorted(ended) == sorted(given_out)
    again = FakeExecutor()
    run(store, again)
    assert again.submitted == sorted(set(range(COUNT)) - set(given_out))
    check_complete(store)


def test_the_first_wish_to_stop_finishes_what_is_in_flight(store: JobStore) -> None:
    stop = StopRequest()

    def ask(executor: FakeExecutor) -> None:
        if len(executor.submitted) >= 40 and not stop.is_asked:
            assert stop.ask()

    executor = FakeExecutor(on_finished=ask)
    summary = run(store, executor, stop=stop)
    assert summary.now == len(executor.submitted)
    assert 40 <= summary.now < 60
    assert summary.waiting == COUNT - summary.now
    assert executor.closed == [False]
    run(store)
    check_complete(store)


def test_the_second_wish_to_stop_drops_what_is_in_flight(store: JobStore) -> None:
    stop = StopRequest()

    def ask(executor: FakeExecutor) -> None:
        executor.is_ready = len(executor.submitted) < 40
        if not executor.is_ready:  # nothing will end any more
            stop.ask()

    executor = FakeExecutor(on_finished=ask)
    summary = run(store, executor, stop=stop)
    assert not stop.ask()
    assert executor.closed == [True]
    assert summary.now == len(executor.submitted) - 8
    run(store)
    check_complete(store)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such colour"), "its files cannot be written: ValueError: no such colour"),
        (
            OSError(36, "too long"),
            f"its files cannot be written: [Errno {errno.ENAMETOOLONG}] too long",
        ),
        (InvalidInput("it has no picture"), "it has no picture"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_its_images_failure(store: JobStore, error: Exception, reason: str) -> None:
    summary = run(store, writers=[Writer(store.folder, raising(error))])
    assert (summary.failed, summary.waiting) == (FAILED + 1, 0)
    assert {failure.item.index: failure.reason for failure in store.failures()}[9] == reason
    assert not ResultFiles(store.folder).path(9).exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left"), "is full: make room, then the same command goes on"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "is full: make room"),
        (OSError(errno.EIO, "Input/output error"), r"cannot be written \(Input/output error\): when it can be again"),
        (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (JobStopped("the folder with the images is gone"), "the folder with the images is gone"),
    ],
)
def test_a_disk_that_cannot_be_written_stops_the_job(store: JobStore, error: Exception, told: str) -> None:
    executor = FakeExecutor()
    with pytest.raises(JobStopped, match=told):
        run(store, executor, [Writer(store.folder, raising(error))])
    assert executor.closed == [True]
    assert 9 in {work.item.index for work in store.waiting(COUNT)}
    assert {item.index for item in store.done()} >= set(range(8)) - {3}  # what had ended before
    run(store)
    check_complete(store)


def test_a_result_that_cannot_be_written_stops_the_job(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_file = results.whole_file

    def full(path: Path) -> object:
        if path.name == "000000020.json":
            raise OSError(errno.ENOSPC, "No space left")
        return whole_file(path)

    monkeypatch.setattr(results, "whole_file", full)
    with pytest.raises(JobStopped, match="is full"):
        run(store)
    monkeypatch.undo()
    run(store)
    check_complete(store)


def test_a_result_that_is_not_json_is_its_images_failure(store: JobStore) -> None:
    def outcome(work: Work) -> Outcome:
        if work.item.index != 2:
            return outcome_of(work)
        return Outcome(work, ItemResult(work.item, 4, 5, [], seconds=float("nan")))

    run(store, FakeExecutor(outcome=outcome))
    assert "its result cannot be written" in {one.item.index: one.reason for one in store.failures()}[2]


def test_outcomes_without_result_or_reason_and_twice(store: JobStore) -> None:
    class Odd(FakeExecutor):
        def finished(self, timeout: float) -> list[Outcome]:
            outcomes = list(super().finished(timeout))
            return [one if one.work.item.index else Outcome(one.work) for one in outcomes] + outcomes

    assert run(store, Odd()).now == COUNT
    assert next(store.failures()).reason == "it has neither a result nor a reason"
    assert all(failure.tries == 1 for failure in store.failures())


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("a bug")])
def test_records_that_cannot_be_written_stop_the_job(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(folder: Path) -> None:
        raise error

    monkeypatch.setattr(recording, "sync_where_possible", fail)
    with pytest.raises(JobStopped if isinstance(error, OSError) else ValueError):
        run(store)
    assert store.counts().done == 0
    monkeypatch.undo()
    run(store)
    check_complete(store)


def test_the_jobs_folder_is_moved_while_it_runs(store: JobStore) -> None:
    moved = store.folder / "moved"
    with pytest.raises(JobStopped, match="is gone"):
        run(store, writers=[Writer(store.folder, lambda: (store.folder / STATE_FILE).rename(moved))])
    assert moved.exists()


def test_memory_is_bounded_while_the_disk_is_slow(tmp_path: Path) -> None:
    go_on = threading.Event()
    given_out = 0
    turns = 0

    def outcome(work: Work) -> Outcome:
        nonlocal given_out
        given_out += 1
        return outcome_of(work)

    def look(_step: JobProgress) -> None:
        nonlocal turns
        turns += given_out > 0
        if turns == 4:  # reports of a second in which nothing could be written
            assert given_out <= 64 + 3
            go_on.set()

    class Slow:
        def write(self, result: ItemResult, data: object) -> None:
            assert go_on.wait(60)

    with opened(tmp_path, given([f"{number}.png" for number in range(400)])) as store:
        executor = FakeExecutor(1000, outcome=outcome)
        run(store, executor, [Slow()], look)
        assert executor.most <= 512
        check_complete(store)


def test_a_write_that_never_ends_does_not_hold_the_job(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_SHORT_PATIENCE", 0.2)
    stop = StopRequest()
    never = threading.Event()

    class Hangs:
        def write(self, result: ItemResult, data: object) -> None:
            if result.item.index == 5:
                stop.ask()
                stop.ask()
                never.wait(60)

    with caplog.at_level(logging.WARNING):
        summary = run(store, writers=[Hangs()], stop=stop)
    assert "the disk takes too long" in caplog.text
    assert summary.waiting > 0
    never.set()


def test_failures_are_tried_again_when_they_are_reset(store: JobStore) -> None:
    run(store)
    assert store.reset_failed() == FAILED
    executor = FakeExecutor(outcome=lambda work: Outcome(work, result_of(work.item)))
    summary = run(store, executor)
    assert executor.submitted == [number for number in range(COUNT) if number % 7 == 3]
    assert (summary.done, summary.failed, summary.now) == (COUNT, 0, FAILED)


def test_rate_is_of_the_last_minute() -> None:
    now = 100.0
    rate = Rate(lambda: now)
    assert rate.at(0) == 0
    for second in range(1, 61):
        now = 100.0 + second
        assert rate.at(second * 2) == pytest.approx(2)
    for second in range(61, 121):
        now = 100.0 + second
        value = rate.at(120 + (second - 60) * 8)
    assert value == pytest.approx(8)
    assert rest_seconds(16, value) == pytest.approx(2)
    assert rest_seconds(16, 0) is None
    assert rest_seconds(0, 0) == 0
