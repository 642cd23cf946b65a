"""The executor's threads against servers in memory. Waits end with the event waited for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.batch import fake_transport as fake
from tests.unit.batch.fake_transport import FakeServer
from tests.waiting import eventually
from triton_sam.batch.executors.thread_executor import ThreadExecutor
from triton_sam.batch.records import Item, Outcome, SegmentOptions, Work
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import (
    InternalError,
    InvalidInput,
    JobStopped,
    NotAuthorised,
    NotFound,
    QueueFull,
    ServerUnreachable,
    Unsupported,
)

Make = Callable[..., ThreadExecutor]


@pytest.fixture
def make() -> Iterator[Make]:
    """Executors on servers ``s0:1``, ``s1:1``, ..., which are closed at the end."""
    made: list[tuple[ThreadExecutor, list[FakeServer]]] = []

    def start(*servers: FakeServer, **more: Any) -> ThreadExecutor:
        by_url = {f"s{number}:1": server for number, server in enumerate(servers)}
        given = {"read": fake.read, "size_of": fake.size_of, "transport": by_url.__getitem__, **more}
        executor = ThreadExecutor(list(by_url), SegmentOptions(), **given)
        made.append((executor, list(servers)))
        return executor

    yield start
    for executor, servers in made:
        for server in servers:
            if server.hold is not None:
                server.hold.set()
        executor.close(at_once=True)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("batch-")]


def all_of(executor: ThreadExecutor, works: list[Work]) -> dict[int, Outcome]:
    """Runs images as a job does; no image may end twice."""
    left, outcomes = list(works), {}
    while len(outcomes) < len(works):
        while left and executor.room() > 0:
            executor.submit(left.pop(0))
        for outcome in executor.finished(60.0):
            assert outcome.work.item.index not in outcomes
            outcomes[outcome.work.item.index] = outcome
    return outcomes


def failures(outcomes: dict[int, Outcome]) -> dict[int, str]:
    return {index: outcome.failure for index, outcome in outcomes.items() if outcome.result is None}


def test_every_image_gets_its_result(make: Make) -> None:
    server = FakeServer()
    outcomes = all_of(make(server), [fake.work(index) for index in range(100)])
    assert failures(outcomes) == {}
    assert all(outcome.result.masks[0].area == 28 for outcome in outcomes.values() if outcome.result)
    assert len(server.calls) == 100


def test_an_image_without_prompts_needs_no_server(make: Make) -> None:
    server = FakeServer()
    outcomes = all_of(make(server), [Work(fake.work(0).item)])
    assert outcomes[0].result is not None
    assert outcomes[0].result.width == fake.WIDTH
    assert server.calls == []


@pytest.mark.parametrize("error", [InvalidInput("the point lies outside"), Unsupported("it takes no boxes")])
def test_a_refused_image_fails_and_the_others_do_not(make: Make, error: Exception) -> None:
    def rule(call: Any, name: str) -> None:
        if name == "image0003":
            raise error

    outcomes = all_of(make(FakeServer(rule)), [fake.work(index) for index in range(8)])
    assert failures(outcomes) == {3: str(error)}


def test_an_image_that_cannot_be_read_fails(make: Make) -> None:
    works = [fake.work(0), fake.work(1, folder=Path("/unreadable"))]
    assert failures(all_of(make(FakeServer()), works)) == {1: "cannot identify the image"}


def test_a_mistake_in_our_own_code_fails_one_image_only(make: Make) -> None:
    def read(item: Item, choice: ImageChoice) -> bytes:
        if item.index == 1:
            raise ZeroDivisionError("division by zero")
        return fake.read(item, choice)

    outcomes = all_of(make(FakeServer(), read=read), [fake.work(index) for index in range(3)])
    assert failures(outcomes) == {1: "unexpected ZeroDivisionError: division by zero"}


def test_an_error_of_the_server_is_tried_three_times(make: Make) -> None:
    tries: Counter[str] = Counter()

    def rule(call: Any, name: str) -> None:
        tries[name] += 1
        if name == "image0000" or (name == "image0001" and tries[name] < 3):
            raise InternalError("out of memory")

    outcomes = all_of(make(FakeServer(rule)), [fake.work(index) for index in range(3)])
    assert failures(outcomes) == {0: "out of memory"}
    assert (tries["image0000"], tries["image0001"]) == (3, 3)


def test_a_full_queue_is_never_a_failure(make: Make) -> None:
    refused = iter([QueueFull("32 images are waiting")] * 2)

    def rule(call: Any, name: str) -> None:
        for error in refused:
            raise error

    assert failures(all_of(make(FakeServer(rule)), [fake.work(index) for index in range(5)])) == {}


def test_a_wrong_token_stops_the_job_after_what_is_finished_was_given(make: Make) -> None:
    def rule(call: Any, name: str) -> None:
        if len(server.calls) == 6:
            raise NotAuthorised("the service does not accept this token")

    server = FakeServer(rule)
    executor = make(server, most=1)
    for index in range(6):
        executor.submit(fake.work(index))
    given: list[Outcome] = []

    def collect() -> None:
        while True:
            given.extend(executor.finished(60.0))

    with pytest.raises(JobStopped, match="does not accept this token"):
        collect()
    assert len(given) == 5


def test_a_folder_that_is_gone_stops_the_job(make: Make) -> None:
    def read(item: Item, choice: ImageChoice) -> bytes:
        raise JobStopped("the folder /images is gone")

    executor = make(FakeServer(), read=read)
    executor.submit(fake.work(0))
    with pytest.raises(JobStopped, match="is gone"):
        executor.finished(60.0)


def test_a_model_that_is_not_served_stops_the_job(make: Make) -> None:
    def rule(call: Any, name: str) -> None:
        raise NotFound("unknown model")

    executor = make(FakeServer(rule))
    executor.submit(fake.work(0))
    with pytest.raises(JobStopped, match="does not serve sam2, but sam2"):
        executor.finished(60.0)


def test_a_restart_is_waited_for(make: Make) -> None:
    server = FakeServer()
    executor = make(server)
    all_of(executor, [fake.work(0)])
    server.is_down = True
    executor.submit(fake.work(1))
    eventually(lambda: "waiting for s0:1" in executor.describe(), "the server is seen to be away")
    assert executor.finished(0.0) == []
    server.is_down = False
    (outcome,) = executor.finished(60.0)
    assert outcome.result is not None


def test_no_server_for_too_long_stops_the_job_and_names_them(make: Make) -> None:
    servers = FakeServer(), FakeServer()
    for server in servers:
        server.is_down = True
    executor = make(*servers, patience=0.1)
    for index in range(8):
        executor.submit(fake.work(index))
    with pytest.raises(JobStopped, match=r"none of 2 servers .*s0:1: no server responds; s1:1: no server responds"):
        executor.finished(60.0)


def test_an_image_that_kills_its_server_fails_and_all_others_do_not(make: Make) -> None:
    """Those in flight with it are lost with it, each time."""
    killed = threading.Event()

    def rule(call: Any, name: str) -> None:
        if name == "image0004":
            killed.set()
        if killed.is_set():
            raise ServerUnreachable("the connection was lost")

    server = FakeServer(rule)
    ready = server.is_ready

    def is_ready(model: str) -> bool:
        killed.clear()  # the server has been started again
        return ready(model)

    server.is_ready = is_ready  # type: ignore[method-assign]
    outcomes = all_of(make(server), [fake.work(index) for index in range(30)])
    assert list(failures(outcomes)) == [4]
    assert "3 times" in outcomes[4].failure
    assert server.names["image0004"] == 3


def test_the_last_image_fails_too_if_it_kills_its_server(make: Make) -> None:
    def rule(call: Any, name: str) -> None:
        raise ServerUnreachable("the connection was lost")

    outcomes = all_of(make(FakeServer(rule)), [fake.work(0)])
    assert "and works otherwise (the connection was lost)" in outcomes[0].failure


def test_images_go_to_their_servers_and_around_a_dead_one(make: Make) -> None:
    servers = FakeServer(), FakeServer()
    works = [fake.work(index) for index in range(40)]
    executor = make(*servers)
    assert failures(all_of(executor, works)) == {}
    assert all(len(server.calls) > 5 for server in servers)
    servers[0].is_down = True
    before = len(servers[1].calls)
    assert failures(all_of(executor, works)) == {}
    assert len(servers[1].calls) == before + 40


def test_the_number_in_flight_is_bounded(make: Make) -> None:
    server = FakeServer()
    all_of(make(server, most=3), [fake.work(index) for index in range(100)])
    assert server.most_in_flight <= 3


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_in_flight_is_finished_or_dropped_when_it_is_closed(make: Make, at_once: bool) -> None:
    server = FakeServer()
    server.hold = threading.Event()
    executor = make(server)
    for index in range(executor.room()):
        executor.submit(fake.work(index))
    server.arrived.acquire()
    server.arrived.acquire()
    closing = threading.Thread(target=executor.close, kwargs={"at_once": at_once})
    closing.start()
    eventually(lambda: executor._engine.is_closed, "the executor takes nothing new")
    if not at_once:
        server.hold.set()
    closing.join(60.0)
    assert not closing.is_alive()
    assert len(executor.finished(0.0)) == (0 if at_once else 2)
    assert executor.finished(60.0) == []
    assert executor.room() == 0


def test_it_can_be_closed_while_it_waits_for_a_server(make: Make) -> None:
    server = FakeServer()
    server.is_down = True
    executor = make(server)
    executor.submit(fake.work(0))
    eventually(lambda: "waiting" in executor.describe(), "the server is seen to be away")
    executor.close(at_once=False)
    assert executor.room() == 0
    assert executor.finished(60.0) == [], "what was not sent has no outcome"


def test_it_can_be_closed_before_anything_was_sent(make: Make) -> None:
    server = FakeServer()
    executor = make(server)
    executor.close(at_once=False)
    assert executor.room() == 0
    assert not server.calls
