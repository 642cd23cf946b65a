"""What is sent next, and what a lost server means for the images that it had; without threads."""

from __future__ import annotations

from collections import deque

import pytest

from tests.unit.batch import fake_transport as fake
from triton_sam.batch.executors.dispatching import Dispatcher, Entry, Flight
from triton_sam.batch.executors.segmenting import digest_of, image_file
from triton_sam.batch.executors.servers import Servers
from triton_sam.batch.records import ItemResult, Outcome
from triton_sam.errors import DeadlineExceeded, InternalError, NotFound, ServerUnreachable, TritonSamError, Unavailable

LOST = ServerUnreachable("the connection was lost")


class Desk:
    """A dispatcher of one or more servers, and the outcomes."""

    def __init__(self, count: int = 1, patience: float = 600.0) -> None:
        self.board = Dispatcher(Servers([f"s{n}:1" for n in range(count)], patience=patience), readers=4)
        self.into: deque[Outcome] = deque()
        self.now = 0.0

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.board.submit(Entry(fake.work(number), self.into))
            entry = self.board.next_read()
            assert entry is not None
            self.board.read(entry, image_file(fake.image_of(entry.work.item.name)))

    def send(self, server: int = 0) -> Flight | None:
        self.now += 1.0
        return self.board.next_flight(server, self.now)

    def sent(self, server: int = 0) -> Flight:
        flight = self.send(server)
        assert flight is not None
        return flight

    def answer(self, flight: Flight) -> None:
        self.now += 1.0
        self.board.answered(flight, ItemResult(flight.entry.work.item, 1, 1, ()), self.now)

    def fail(self, flight: Flight, error: TritonSamError) -> None:
        self.now += 1.0
        self.board.failed(flight, error, self.now)

    def come_back(self, server: int = 0) -> None:
        self.board.servers.states[server].asking()
        self.board.back(server)

    @property
    def failures(self) -> dict[int, str]:
        return {outcome.work.item.index: outcome.failure for outcome in self.into if outcome.failure}


def number(flight: Flight | None) -> int | None:
    return None if flight is None else flight.entry.work.item.index


def test_images_lost_together_are_tried_together_once_and_then_alone() -> None:
    desk = Desk()
    desk.add(0, 1)
    for _ in range(2):
        flights = [desk.sent(), desk.sent()]
        for flight in flights:
            desk.fail(flight, LOST)
        assert desk.send() is None  # nothing is sent to a server that is away
        desk.come_back()
    alone = desk.sent()
    assert desk.send() is None
    desk.answer(alone)
    culprit = desk.sent()
    desk.fail(culprit, LOST)
    assert list(desk.failures) == [number(culprit)]
    assert len(desk.into) == 2


def test_an_image_lost_three_times_waits_for_proof_that_the_server_works() -> None:
    desk = Desk()
    desk.add(0, 1)
    for _ in range(3):
        first, second = desk.sent(), desk.send()
        for flight in filter(None, (first, second)):
            desk.fail(flight, LOST)
        desk.come_back()
    assert desk.failures == {}
    desk.answer(desk.sent())
    assert len(desk.failures) == 1


def test_a_server_that_answers_nothing_in_time_stops_the_job_and_fails_no_image() -> None:
    desk = Desk(patience=600.0)
    desk.add(*range(6))
    while desk.board.stopped is None:
        flight = desk.sent()
        desk.now += 120.0
        desk.fail(flight, DeadlineExceeded("no response within the time limit"))
        desk.come_back()
    assert desk.failures == {}
    assert "no response within the time limit" in str(desk.board.stopped)


def test_one_late_answer_among_others_does_not_put_a_server_away() -> None:
    desk = Desk()
    desk.add(0, 1)
    slow, quick = desk.sent(), desk.sent()
    desk.answer(quick)
    desk.fail(slow, DeadlineExceeded("no response within the time limit"))
    assert desk.board.servers.states[0].is_up
    assert number(desk.send()) == number(slow)


def test_a_lost_image_goes_elsewhere() -> None:
    desk = Desk(2)
    desk.add(*range(8))
    flight = desk.sent(0)
    desk.fail(flight, LOST)
    desk.come_back(0)
    assert number(flight) in {number(desk.sent(1)) for _ in range(2)} | {
        entry.work.item.index for entry in desk.board._ready if desk.board.servers.home(entry.order, entry.struck) == 1
    }


def test_a_model_that_comes_later_after_a_restart_is_waited_for() -> None:
    desk = Desk()
    desk.add(0, 1)
    desk.answer(desk.sent())
    desk.fail(desk.sent(), NotFound("unknown model"))
    assert desk.board.stopped is None
    assert desk.send() is None
    desk.come_back()
    desk.answer(desk.sent())
    assert desk.failures == {}


@pytest.mark.parametrize("retry_after", [None, 30.0])
def test_a_refused_image_waits(retry_after: float | None) -> None:
    desk = Desk()
    desk.add(0)
    error = Unavailable("the model is being loaded")
    error.retry_after = retry_after
    desk.fail(desk.sent(), error)
    assert (desk.board.wait_for(0, desk.now) or 0.0) == pytest.approx(retry_after or 0.25)
    desk.now += retry_after or 0.25
    desk.answer(desk.sent())
    assert desk.failures == {}


def test_a_server_without_images_of_its_own_takes_those_of_one_that_is_behind() -> None:
    desk = Desk(2)
    numbers = [n for n in range(200) if desk.board.servers.order(fake_digest(n))[0] == 0]
    desk.add(*numbers[:3])
    assert desk.send(1) is None  # one of its own may come
    desk.add(*numbers[3:8])
    assert desk.send(1) is not None


def test_room_is_for_what_servers_want_and_a_little_more() -> None:
    desk = Desk()
    first = desk.board.room
    assert 2 < first <= 8
    desk.add(*range(first))
    assert desk.board.room == 0
    desk.board.servers.states[0].pace.limit = 32
    assert desk.board.room >= 32


def fake_digest(number: int) -> str:
    return digest_of(image_file(fake.image_of(fake.work(number).item.name)))


def test_an_image_that_a_server_has_an_error_with_goes_to_another_one() -> None:
    desk = Desk(2)
    desk.add(0)
    home = next(server for server in (0, 1) if desk.board.servers.home(desk.board._ready[0].order) == server)
    desk.fail(desk.sent(home), InternalError("CUDA error"))
    assert desk.send(home) is None
    desk.answer(desk.sent(1 - home))
    assert not desk.failures


def test_a_server_with_nothing_but_errors_stops_the_job_and_fails_few_images() -> None:
    desk = Desk(patience=100.0)
    added = 0
    for _ in range(1000):
        if desk.board.stopped is not None:
            break
        if not desk.board._ready:
            desk.add(added)
            added += 1
        flight = desk.send()
        if flight is None:
            desk.come_back()  # it answers questions, as such a server does
        else:
            desk.fail(flight, InternalError("CUDA error"))
    assert "the server has not answered for 100 s (s0:1: CUDA error)" in str(desk.board.stopped)
    assert len(desk.failures) == 4


def test_a_single_bad_image_fails_after_three_tries() -> None:
    desk = Desk()
    desk.add(0)
    for _ in range(3):
        desk.fail(desk.sent(), InternalError("no such layer"))
    assert desk.failures == {0: "no such layer"}
