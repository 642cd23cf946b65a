"""People on a fake server: what they send, and that every action ends once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.bench.users.fake_server import KEY, FakeServer, fake_server
from triton_sam.bench.pictures import Pictures, number_at
from triton_sam.bench.users.messages import Site
from triton_sam.bench.users.schedule import Behaviour
from triton_sam.bench.users.tally import Actions, Tally
from triton_sam.bench.users.worker import SERVICE, TRITON, Job, Workplace
from triton_sam.errors import InvalidInput, ServerUnreachable

DATA = Pictures(side=64).jpeg()
#: A person who is never still for long.
BRISK = Behaviour(movement=(0.3, 0.4), pause=(0.05, 0.1), image_seconds=0.6)
WAYS = pytest.mark.parametrize("through", [TRITON, SERVICE])


def job(server: FakeServer, through: str, **changes: Any) -> Job:
    at = number_at(DATA)
    site = Site("127.0.0.1", server.port, "sam2", DATA, at.start, at.stop - at.start, "bits")
    given = Job(site, (64, 64), through, [0, 1], 2, BRISK, 0.9, 0.0, 3, 0, "run", 100, error_pause=0.1)
    return dataclasses.replace(given, **changes)


def work(
    through: str, arrange: Callable[[FakeServer], object] = lambda server: None, **changes: Any
) -> tuple[Tally, FakeServer, dict[str, Any]]:
    """Two people at work for a moment."""

    async def go() -> tuple[Tally, FakeServer, dict[str, Any]]:
        async with fake_server() as server:
            arrange(server)
            place = Workplace(job(server, through, **changes))
            try:
                await asyncio.wait_for(place.prepare(), 20)
                result = await place.run(asyncio.get_running_loop().time())
            finally:
                place.watch.gone.cancel()
                await place.close()
            return Tally.from_json(result["tally"]), server, result

    return asyncio.run(go())


def assert_all_ended(tally: Tally) -> None:
    for actions in (tally.hovers, tally.last_hovers, tally.clicks, tally.images):
        assert actions.made == actions.answered + actions.superseded + actions.errors.total(), actions


@WAYS
def test_everything_is_answered_and_counted(through: str) -> None:
    tally, server, result = work(through)
    assert_all_ended(tally)
    assert tally.errors == {}
    assert tally.hovers.made == tally.hovers.answered + tally.hovers.superseded == server.count("hover") + tally.unsent
    assert tally.clicks.made == tally.clicks.answered == server.count("click") > 0
    assert tally.images.made == tally.images.answered == server.count("image") - 2 > 0  # two before the run
    assert 0 < tally.last_hovers.made < tally.hovers.made
    assert all(spent > 0 for spent in tally.hovers.seconds)
    assert result["cpu_seconds"] > 0
    assert len(tally.late) >= tally.hovers.made


def test_requests_to_triton_have_sessions_and_growing_numbers() -> None:
    _, server, _ = work(TRITON)
    hovers = [document for kind, document, _ in server.requests if kind == "hover"]
    sessions = {document["parameters"]["session_id"] for document in hovers}
    assert sessions == {"run 0 hover", "run 1 hover"}
    for session in sessions:
        own = [each["parameters"] for each in hovers if each["parameters"]["session_id"] == session]
        numbers = [each["sequence"] for each in own]
        assert numbers == sorted(set(numbers))
        assert all(each["latest_wins"] is True for each in own)
    assert all(KEY.encode() in document["binary"] for document in hovers)
    images = [document["binary"] for kind, document, _ in server.requests if kind == "image"]
    assert len(set(images)) == len(images)


def test_a_person_has_one_websocket_and_answers_pings() -> None:
    _, server, _ = work(SERVICE)
    assert server.count("pong") == 2
    assert [document["text"] for kind, document, _ in server.requests if kind == "pong"] == ["are you there"] * 2


@WAYS
def test_what_a_newer_hover_supersedes_is_no_error(through: str) -> None:
    def arrange(server: FakeServer) -> None:
        server.hold = 3

    tally, _, _ = work(through, arrange, drain_seconds=0.2)
    assert_all_ended(tally)
    assert tally.hovers.superseded >= 2
    assert tally.hovers.answered >= 1
    assert set(tally.errors) <= {"no_answer"}  # the last ones wait for more that never come


def test_a_person_waits_with_the_newest_hover_only() -> None:
    def arrange(server: FakeServer) -> None:
        server.hold = 1000

    tally, server, _ = work(TRITON, arrange, drain_seconds=0.1, people=[0], users=1)
    assert_all_ended(tally)
    assert server.count("hover") == 3  # all in flight for ever
    assert tally.hovers.errors == {"no_answer": 4}
    assert tally.unsent == tally.hovers.superseded == tally.hovers.made - 4


@WAYS
def test_people_go_on_after_errors(through: str) -> None:
    def arrange(server: FakeServer) -> None:
        error = b'{"error": {"code": "queue_full", "message": "too many"}}'
        server.answer = lambda kind, number: (503, error) if kind != "image" and number % 3 == 1 else None

    tally, _, _ = work(through, arrange)
    assert_all_ended(tally)
    assert set(tally.errors) == {"queue_full"}
    assert tally.messages == {"queue_full": "too many"}
    assert tally.hovers.errors["queue_full"] >= 2
    assert tally.hovers.answered > 0
    assert tally.skipped > 0  # in the pauses after the errors


@WAYS
def test_a_connection_that_is_lost_is_opened_again(through: str) -> None:
    def arrange(server: FakeServer) -> None:
        server.answer = lambda kind, number: (0, b"") if kind == "hover" and number == 2 else None

    tally, server, _ = work(through, arrange, people=[0], users=1)
    assert_all_ended(tally)
    # Triton's connection was reused and got no byte back, so the hover is sent again; a WebSocket is not.
    assert set(tally.errors) <= ({"connection_lost"} if through == SERVICE else set())
    assert tally.hovers.answered > 2
    assert server.opened == (3 if through == SERVICE else 2)


def test_an_expired_image_is_opened_again() -> None:
    def arrange(server: FakeServer) -> None:
        expired = b'{"error": "unknown or expired [image-expired]"}'
        server.answer = lambda kind, number: (404, expired) if kind == "hover" and number == 1 else None

    never = dataclasses.replace(BRISK, image_seconds=1e6)
    tally, server, _ = work(TRITON, arrange, people=[0], users=1, behaviour=never)
    assert_all_ended(tally)
    assert tally.hovers.errors == {"image_expired": 1}
    assert tally.images.answered == 1
    assert server.count("image") == 2


def test_a_first_image_that_a_full_queue_refuses_is_sent_again() -> None:
    def arrange(server: FakeServer) -> None:
        full = b'{"error": "the queue is full [queue-full]"}'
        server.answer = lambda kind, number: (503, full) if kind == "image" and number == 1 else None

    tally, server, _ = work(TRITON, arrange, people=[0], users=1, seconds=0.1)
    assert tally.errors == {}
    assert server.count("image") == 2


@WAYS
def test_a_first_image_that_is_refused_ends_the_run(through: str) -> None:
    def arrange(server: FakeServer) -> None:
        server.answer = lambda kind, number: (404, b'{"error": "unknown model sam9"}') if kind == "image" else None

    with pytest.raises(InvalidInput, match="unknown model sam9"):
        work(through, arrange)


@WAYS
def test_a_server_that_goes_away_ends_the_run(through: str) -> None:
    async def go() -> None:
        async with fake_server() as server:
            place = Workplace(job(server, through, seconds=60.0, away_seconds=0.0))
            try:
                await place.prepare()
                running = asyncio.create_task(place.run(asyncio.get_running_loop().time()))
                while not server.count("hover"):
                    await asyncio.sleep(0.01)
                await server.stop()
                with pytest.raises(ServerUnreachable, match="went away during the run"):
                    await asyncio.wait_for(running, 20)
            finally:
                await place.close()

    asyncio.run(go())


def test_a_job_survives_its_way_to_the_process() -> None:
    server = FakeServer()
    given = job(server, SERVICE)
    assert Job.from_json(given.as_json()) == given


def test_counts_of_actions() -> None:
    actions = Actions(made=1, seconds=[0.5])
    actions.merge(Actions(made=2, superseded=1))
    assert (actions.made, actions.answered, actions.superseded) == (3, 1, 1)
