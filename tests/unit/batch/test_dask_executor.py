"""Chunks on Dask: a cluster inside this process, and one of two processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.batch import fake_transport as fake
from tests.unit.batch.fake_transport import FakeServer, memory_transport
from tests.waiting import eventually
from triton_sam.batch.executors import dask_executor
from triton_sam.batch.executors.dask_executor import DaskExecutor
from triton_sam.batch.executors.dask_worker import EngineSettings, _engines
from triton_sam.batch.records import Item, Outcome, SegmentOptions, Work
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import InvalidInput, JobStopped, NotAuthorised, SetupError

distributed = pytest.importorskip("distributed")
Make = Callable[..., DaskExecutor]
#: What distributed and its event loop leave behind when they are closed.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(distributed|dask|tornado)"),
]


#: Of the present test; workers in this process share it.
_servers: dict[str | None, FakeServer] = {}


def the_server(url: str | None) -> FakeServer:
    return _servers[url]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as running:
        yield running


@pytest.fixture
def make(cluster: Any) -> Iterator[Make]:
    made: list[DaskExecutor] = []

    def start(server: FakeServer | None = None, **more: Any) -> DaskExecutor:
        given = {
            "read": fake.read,
            "size_of": fake.size_of,
            "transport": the_server if server is not None else memory_transport,
            "cluster": cluster,
            "chunk": 4,
            **more,
        }
        if server is not None:
            _servers["s0:1"] = server
        made.append(DaskExecutor(["s0:1"], SegmentOptions(), **given))
        return made[-1]

    yield start
    for executor in made:
        executor.close(at_once=True)
    assert not _engines


def all_of(executor: DaskExecutor, works: list[Work]) -> dict[int, Outcome]:
    left, outcomes = list(works), {}
    while len(outcomes) < len(works):
        while left and executor.room() > 0:
            executor.submit(left.pop(0))
        for outcome in executor.finished(60.0):
            assert outcome.work.item.index not in outcomes
            outcomes[outcome.work.item.index] = outcome
    return outcomes


def works_in(folder: Path, count: int) -> list[Work]:
    return [fake.work(index, folder=folder) for index in range(count)]


def test_every_image_gets_its_result(make: Make, tmp_path: Path) -> None:
    executor = make()
    outcomes = all_of(executor, works_in(tmp_path, 30))
    assert all(outcome.result and outcome.result.masks[0].area == 28 for outcome in outcomes.values())
    assert executor.finished(0.0) == ()


def test_nothing_stays_with_the_scheduler(make: Make, cluster: Any, tmp_path: Path) -> None:
    all_of(make(), works_in(tmp_path, 30))
    with distributed.Client(cluster, set_as_default=False) as client:
        eventually(lambda: not any(client.has_what().values()), "the workers forget the results")


def test_its_room_is_bounded(make: Make, tmp_path: Path) -> None:
    server = FakeServer()
    server.hold = threading.Event()
    executor = make(server)
    count = 0
    while executor.room() > 0:
        executor.submit(fake.work(count, folder=tmp_path))
        count += 1
    assert count == 3 * 2 * 4  # chunks of four, three for each of two workers
    server.hold.set()
    assert len(executor.finished(60.0)) > 0


def test_workers_are_counted_while_a_job_looks_every_tenth_of_a_second(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "_COUNT_SECONDS", 0.0)
    server = FakeServer()
    server.hold = threading.Event()
    executor = make(server)
    executor.submit(fake.work(0, folder=tmp_path))
    executor._workers = 7
    assert not executor.finished(0.05)
    assert "on 2 Dask workers" in executor.describe()
    server.hold.set()
    assert len(executor.finished(60.0)) == 1


def test_two_jobs_share_the_workers(make: Make, tmp_path: Path) -> None:
    server = FakeServer()
    first, second = make(server), make(server)
    for number in range(12):
        first.submit(fake.work(number, folder=tmp_path))
        second.submit(fake.work(number, folder=tmp_path))
    for executor in (first, second):
        found: list[Outcome] = []
        while len(found) < 12:
            found += executor.finished(60.0)
        assert not any(outcome.failure for outcome in found)
    assert len(server.calls) == 24, "nothing is sent twice"


def test_a_bad_image_fails_alone(make: Make, tmp_path: Path) -> None:
    def rule(call: Any, name: str) -> None:
        if name == "image0002":
            raise InvalidInput("the box lies outside")

    outcomes = all_of(make(FakeServer(rule)), works_in(tmp_path, 6))
    assert {index: o.failure for index, o in outcomes.items() if o.failure} == {2: "the box lies outside"}


def test_a_wrong_token_stops_the_job(make: Make, tmp_path: Path) -> None:
    def rule(call: Any, name: str) -> None:
        raise NotAuthorised("the service does not accept this token")

    executor = make(FakeServer(rule))
    for work in works_in(tmp_path, 4):
        executor.submit(work)
    with pytest.raises(JobStopped, match="does not accept this token"):
        executor.finished(60.0)
    assert executor.room() == 0


def test_a_folder_that_the_workers_do_not_have_stops_the_job(make: Make) -> None:
    executor = make()
    executor.submit(fake.work(0, folder=Path("/only/here")))
    with pytest.raises(JobStopped, match=r"has no folder /only/here: mount the images at the same path"):
        executor.finished(60.0)


def test_what_is_on_the_way_is_finished_when_it_is_closed(make: Make, tmp_path: Path) -> None:
    server = FakeServer()
    server.hold = threading.Event()
    executor = make(server)
    for work in works_in(tmp_path, 4):
        executor.submit(work)
    server.arrived.acquire()
    server.hold.set()
    executor.close(at_once=False)
    assert len(executor.finished(0.0)) == 4
    assert executor.finished(0.0) == ()


def test_a_scheduler_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(JobStopped, match=r"no Dask scheduler responds at tcp://127.0.0.1:1: start one"):
        DaskExecutor(["s0:1"], SegmentOptions(), read=fake.read, size_of=fake.size_of, scheduler="tcp://127.0.0.1:1")


def test_an_address_that_is_none_is_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="is not a scheduler's address"):
        DaskExecutor(["s0:1"], SegmentOptions(), read=fake.read, size_of=fake.size_of, scheduler="foo://127.0.0.1:1")


def test_dask_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SetupError, match=r"Dask is not installed: .*batch"):
        DaskExecutor(["s0:1"], SegmentOptions(), read=fake.read, size_of=fake.size_of, workers=1)


def test_a_token_is_not_shown() -> None:
    settings = EngineSettings("r", (None,), SegmentOptions(), 1.0, 1.0, 1, fake.read, fake.size_of, "a secret token")
    assert "secret" not in repr(settings)


def read_or_die(item: Item, choice: ImageChoice) -> bytes:
    """Ends its process at the first image of the second chunk, once; and always at ``image0013``."""
    mark = item.path.parent / "died"
    if item.index == 5 and not mark.exists():
        mark.touch()
        os._exit(1)
    if item.index == 13:
        os._exit(1)
    return fake.read(item, choice)


@pytest.mark.part("batch")
def test_a_lost_worker_costs_time_only_and_an_image_that_ends_workers_fails(tmp_path: Path) -> None:
    executor = DaskExecutor(
        ["s0:1"],
        SegmentOptions(),
        read=read_or_die,
        size_of=fake.size_of,
        workers=2,
        chunk=4,
        transport=memory_transport,
    )
    try:
        outcomes = all_of(executor, works_in(tmp_path, 16))
    finally:
        executor.close(at_once=True)
    assert (tmp_path / "died").exists()
    assert {index for index, outcome in outcomes.items() if outcome.failure} == {13}
    assert "several Dask workers ended" in outcomes[13].failure
